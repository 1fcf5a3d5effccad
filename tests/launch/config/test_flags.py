"""The words of `rl-train`: presets, those allowed on resuming, sizes, and what is written down."""

import json
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from engram.base.errors import MISTAKE, NOT_AVAILABLE, EngramError
from engram.base.processes import shell_command
from engram.launch.api.training import Outcome
from engram.launch.config.plain import from_dict, redacted, to_dict
from engram.launch.config.run_config import RunConfig
from engram.launch.config.run_flags import parse_run, preset
from engram.launch.runs.directory import RunDirectory
from engram.launch.runs.trained import resumed_by_words
from engram.launch.train import acting
from engram.launch.train import command as train
from runs import TINY


def run_train(*words: object) -> int:
    return train.main([str(word) for word in words])


def test_parameters_are_laid_on_those_of_the_preset() -> None:
    config = parse_run(["--env", "pomdp-graph", "--core", "fwm", "--core-args", "num_reads=1"])
    assert config.agent.core_args == {"hidden_size": 32, "memory_size": 16, "num_reads": 1}
    config = parse_run(["--preset", "easy", "--env-args", "max_steps=60"])
    assert config.env_args == {"path_lengths": 1, "num_distractors": 0, "grid_size": 6, "max_steps": 60}


def test_another_core_than_in_a_file_has_its_own_options(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, to_dict(preset("paper", "boxworld", "rmc")), name="x").close()
    words = ["--config", str(tmp_path / "config.toml"), "--core", "lstm", "--core-args", "hidden_size=8"]
    assert parse_run(words).agent.core_args == {"hidden_size": 8}


def test_the_file_of_a_run_does_not_carry_its_directory(tmp_path: Path) -> None:
    run = tmp_path / "run"
    RunDirectory.create(run, to_dict(RunConfig(run_dir=str(run), seed=7)), name="x").close()
    words = ["--config", str(run / "config.toml")]
    assert (parse_run(words).run_dir, parse_run(words).seed) == (None, 7)
    assert parse_run([*words, "--run-dir", "other"]).run_dir == "other"
    own = tmp_path / "own.toml"
    own.write_text('run_dir = "mine"')
    assert parse_run(["--config", str(own)]).run_dir == "mine", "a file that is no run's"


@pytest.mark.parametrize("name", ["engram/BoxWorld-v0", "engram:engram/BoxWorld-v0", "boxworld-twin"])
def test_presets_are_found_by_every_name_of_an_environment(name: str) -> None:
    for which in ("paper", "easy"):
        assert replace(preset(which, name, "rmc"), env="boxworld") == preset(which, "boxworld", "rmc")


# -- what is written down ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "written"),
    [
        ("https://TOKEN@host/run?sig=abc", "https://***@host/run?***"),
        ("https://host/run", "https://host/run"),
        ("s3://bucket/run", "s3://bucket/run"),
        ("file:///tmp/a", "file:///tmp/a"),
        ("sftp://me@host/run", "sftp://me@host/run"),
        ("zip://x.zip::https://TOKEN@host/x.zip", "zip://x.zip::https://***@host/x.zip"),
        ("abfs://box@account/run?sas=1#k", "abfs://***@account/run?***"),
    ],
)
def test_secrets_of_a_url_are_not_written_down(url: str, written: str) -> None:
    assert redacted(url) == written
    assert to_dict(RunConfig(checkpoint_url=url))["checkpoint_url"] == written
    assert "TOKEN" not in json.dumps(to_dict(RunConfig(checkpoint_url=url)))


@pytest.mark.parametrize("url", ["zip://x::ftp://u:p@h", "https://u:p@h/x", "ftp://u:p@h::file:///a", "s3://", "a/b"])
def test_passwords_and_places_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="passwords belong in the environment"):
        RunConfig(checkpoint_url=url)


@pytest.mark.parametrize("url", ["zip://x::ftp://nowhere.invalid/a.zip", "zip://::", "tar://x::file:///nowhere.tar"])
def test_a_chain_of_urls_that_cannot_be_opened_is_one_line(url: str) -> None:
    with pytest.raises((EngramError, SystemExit)) as caught:
        run_train(*TINY, "--local", "--checkpoint-url", url)
    assert "\n" not in str(caught.value)


def test_a_run_with_a_secret_url_asks_for_it_again(tmp_path: Path) -> None:
    config = replace(parse_run([*TINY, "--local"]), checkpoint_url="https://TOKEN@host.invalid/run")
    with RunDirectory.create(tmp_path / "run", to_dict(config), name="x") as run:
        assert "TOKEN" not in (run.path / "config.toml").read_text()
        assert from_dict(RunConfig, run.config()).checkpoint_url == "https://***@host.invalid/run"
    with pytest.raises(EngramError, match="whose secret part is not stored; give --checkpoint-url again"):
        run_train("--resume", tmp_path / "run")


# -- what has no effect is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--preset", "easy"], ["--config", "x.toml"], ["--run-dir", "elsewhere"]])
def test_flags_that_have_no_effect_on_resuming_are_refused_by_name(tmp_path: Path, words: list[str]) -> None:
    RunDirectory.create(tmp_path / "run", to_dict(parse_run([*TINY, "--local"])), name="x").close()
    before = (tmp_path / "run" / "config.toml").read_bytes()
    with pytest.raises(EngramError, match=f"{words[0]} has no effect with --resume"):
        run_train("--resume", tmp_path / "run", *words)
    with pytest.raises(EngramError, match=r"was trained with learner\.lr"):
        run_train("--resume", tmp_path / "run", "--lr", 0.123)
    assert (tmp_path / "run" / "config.toml").read_bytes() == before


def test_the_patience_of_the_watchdog_can_be_changed_on_resuming(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", to_dict(parse_run([*TINY, "--local"])), name="x") as run:
        assert resumed_by_words(run, ["--stall-timeout", "0.5"]).stall_timeout == 0.5


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "flag",
    ["lr", "entropy-cost", "time-limit", "embedding-bias", "checkpoint-every", "actor-timeout", "pbt.p-value"],
)
def test_numbers_that_are_not_finite_are_refused(flag: str, value: str) -> None:
    with pytest.raises((EngramError, SystemExit)):
        parse_run([f"--{flag}={value}"])


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", ["time_limit", "learner.lr", "agent.torso.embedding_bias", "pbt.resample"])
def test_numbers_that_are_not_finite_are_refused_in_files(place: str, number: float) -> None:
    data = to_dict(RunConfig(population=2))
    *parts, name = place.split(".")
    inside = data
    for part in parts:
        inside = inside[part]
    inside[name] = number
    with pytest.raises(ValueError, match=name):
        from_dict(RunConfig, data)


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--envs-per-actor", "999999999999"], ["--unroll-length", "999999999999"]])
def test_sizes_that_no_machine_holds_are_refused_at_once(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(EngramError, match=r"would take [\d.,]+ PB.*this machine has"):
        run_train(*TINY, "--local", *words, "--run-dir", tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- a start that fails -----------------------------------------------------------------------------------------------


def test_a_start_that_fails_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words, code in (
        (["--ray-address", "127.0.0.1:1"], NOT_AVAILABLE),
        (["--local", "--core-args", "hidden_size=0"], MISTAKE),
    ):
        for more in ([], ["--run-dir", "run"]):
            with pytest.raises(EngramError) as problem:
                run_train(*TINY, *words, *more)
            assert problem.value.exit_code == code
        assert list(tmp_path.iterdir()) == []


def test_a_stop_while_actors_start_is_an_orderly_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal that comes while the actors are started is noted, and heard when they are."""
    import os
    import signal

    make = acting.make_pool

    def noted(*arguments: object) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return make(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(acting, "make_pool", noted)
    assert run_train(*TINY, "--local", "--run-dir", tmp_path / "run") == 0
    assert "stopped (SIGTERM) before training began" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_commands_of_the_farewell_work_where_the_path_has_spaces() -> None:
    path = Path("my runs/the first; one")
    config = parse_run(["--env", "cued-catch", "--population", "2"])
    words = shlex.split(train.farewell(config, Outcome(path=path, reason="SIGTERM", steps=10, unsaved=3)))
    population, parent = shell_command("rl-population"), str(path.parent)
    for pair in (
        ("--resume", str(path)),
        (population, str(path)),
        ("--gif", f"{path}/episode.gif"),
        ("--logdir", parent),
    ):
        assert pair in pairwise(words)
