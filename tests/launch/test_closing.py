"""Every command that makes environments closes them, also where it ends early."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import engram
import slow_envs
from engram.actors.factory import ActorFactory
from engram.base.errors import EngramError
from engram.launch.bench.command import open_parts
from engram.launch.config.run_flags import parse_run
from engram.launch.doctor import command as doctor
from engram.launch.entry import rl_train
from engram.launch.evaluate import command as evaluate
from engram.launch.export import command as export
from engram.launch.insight import command as look
from engram.launch.train import command as train

WORDS = [
    *("--env", "slow_envs:Slow", "--core", "lstm", "--core-args", "hidden_size=4", "--envs-per-actor", "2"),
    *("--envs-per-update", "2", "--unroll-length", "4", "--total-steps", "16"),
]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A run directory, and the log in which its environments note their life."""
    folder = tmp_path_factory.mktemp("closing")
    log, run = folder / "log", folder / "run"
    sys.path.append(str(Path(slow_envs.__file__).parent))
    with pytest.raises(SystemExit):
        rl_train([*WORDS, "--local", "--run-dir", str(run), "--env-args", f"log={log}", "length=5"])
    yield str(run), log
    sys.path.pop()


@pytest.fixture
def log(agent: tuple[str, Path]) -> Iterator[Path]:
    """The log, empty before the test; each environment in it must be closed after it."""
    agent[1].write_text("")
    yield agent[1]
    assert slow_envs.noted(agent[1], "closed") == slow_envs.noted(agent[1], "made") > 0


def test_rl_eval(agent: tuple[str, Path], log: Path) -> None:
    evaluate.main([agent[0], "--episodes", "5"])
    with pytest.raises(EngramError):
        evaluate.main([agent[0], "--episodes", "40", "--decode", "nothing"])


def test_rl_look(agent: tuple[str, Path], log: Path, tmp_path: Path) -> None:
    look.main([agent[0], "--html", str(tmp_path / "a.html")])


def test_rl_export(agent: tuple[str, Path], log: Path, tmp_path: Path) -> None:
    export.main([agent[0], "--torch-export", str(tmp_path / "a.pt2")])


def test_load_agent(agent: tuple[str, Path], log: Path) -> None:
    loaded = engram.load_agent(agent[0])
    assert loaded.act([0.0, 0.0, 0.0]) in (0, 1)


ONE = ["--envs-per-actor", "1", "--envs-per-update", "1"]


@pytest.mark.parametrize("more", [[], ["only_one=true", *ONE]])
def test_rl_doctor(log: Path, more: list[str]) -> None:
    doctor.main(["--json", *WORDS, "--env-args", f"log={log}", *more])


@pytest.mark.parametrize("more", [[], ["only_one=true", *ONE]])
def test_parts_of_rl_bench(log: Path, more: list[str]) -> None:
    config = parse_run([*WORDS, "--env-args", f"log={log}", *more])
    with open_parts(config, torch.device("cpu")) as work:
        work["env"]()


@pytest.mark.parametrize("where", [("--act-on", "cpu"), ("--local", "--eval-every", "8", "--look-every", "8")])
def test_rl_train(log: Path, tmp_path: Path, where: tuple[str, ...]) -> None:
    words = [*WORDS, *where, "--run-dir", str(tmp_path / "run"), "--env-args", f"log={log}", "length=5"]
    assert train.main(words) == 0


def test_an_actor_that_cannot_be_made(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = parse_run([*WORDS, "--env-args", f"log={log}"]).factory()

    def fail(*_: object) -> None:
        raise ValueError("this network cannot be made")

    monkeypatch.setattr(ActorFactory, "make_agent", fail)
    with pytest.raises(ValueError, match="this network"):
        factory.make_actor(0)
