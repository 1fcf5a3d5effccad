"""Settings that depend on each other."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from engram.base.errors import EngramError
from engram.launch.config.command_line import MEANINGS, OTHER_NAMES, flags_of
from engram.launch.config.plain import from_dict, to_dict
from engram.launch.config.run_config import RunConfig
from engram.launch.config.run_flags import parse_run, with_settings
from engram.launch.runs.directory import RunDirectory
from engram.learners.algorithms.ppo import PPOSettings
from engram.learners.config import LearnerConfig


def test_actors_share_the_environments_of_an_update() -> None:
    assert RunConfig(envs_per_update=64).actor_envs == 64
    assert RunConfig(envs_per_update=64, num_actors=3).actor_envs == 22
    assert RunConfig(envs_per_update=4, num_actors=9).actor_envs == 1
    assert RunConfig(envs_per_update=64, num_actors="auto").actor_envs == 8
    assert RunConfig(envs_per_update=64, num_actors=2, sync=True).columns == 64
    assert RunConfig(envs_per_update=64, envs_per_actor=5).actor_envs == 5


def test_a_thread_acts_on_the_learners_gpu() -> None:
    def acting_device(**settings: str) -> str:
        return RunConfig(env="boxworld", **settings).factory().device  # type: ignore[arg-type]

    assert acting_device(act_on="cuda", device="cuda:1") == "cuda:1"
    assert acting_device(act_on="cuda", device="auto") == "cuda"
    assert acting_device(act_on="cpu", device="cuda:1") == "cpu"
    with pytest.raises(ValueError, match="act_on is 'cuda'; allowed with device 'cpu': auto, cpu"):
        acting_device(act_on="cuda", device="cpu")


def test_the_bound_on_policy_lag() -> None:
    assert RunConfig(envs_per_update=64, num_actors=3).lag_bound == 1
    assert RunConfig(envs_per_update=8, envs_per_actor=64).lag_bound == 8
    assert RunConfig(envs_per_update=64, max_lag=5).lag_bound == 5
    assert RunConfig(envs_per_update=64, max_lag=0).lag_bound == 0
    assert RunConfig(envs_per_update=64, max_lag=5, sync=True).lag_bound == 0
    with pytest.raises(
        ValueError, match="max_lag is 0; allowed with 5 environments per actor and updates of 64: auto, or at"
    ):
        RunConfig(envs_per_update=64, envs_per_actor=5, max_lag=0)
    with pytest.raises(ValueError, match="max_lag is -1"):
        RunConfig(max_lag=-1, sync=True)
    with pytest.raises(ValueError, match="envs_per_actor is 0; allowed: auto, at least 1"):
        RunConfig(envs_per_actor=0)


def test_a_none_among_the_options_of_environment_and_core_survives_the_file(tmp_path: Path) -> None:
    """TOML has no None; left out it would be the option's default, another network."""
    config = parse_run(["--env", "boxworld", "--core", "rmc", "--core-args", "gate=None"])
    assert config.agent.core_args["gate"] is None
    with RunDirectory.create(tmp_path / "run", to_dict(config), name="x") as run:
        assert from_dict(RunConfig, run.config()) == config


def test_a_saved_size_of_updates_that_ppo_ignores_is_no_error() -> None:
    saved = {"env": "CartPole-v1", "envs_per_update": 32, "envs_per_actor": 16, "learner": {"algorithm": "ppo"}}
    assert from_dict(RunConfig, saved).columns == 16


def test_settings_that_are_read_are_not_refused(tmp_path: Path) -> None:
    assert parse_run(["--env", "CartPole-v1", "--envs-per-update", "32", "--num-actors", "2"]).columns == 32
    words = ["--env", "CartPole-v1", "--envs-per-actor", "auto", "--envs-per-update", "64", "--max-lag", "auto"]
    assert parse_run(words).columns == 64
    assert parse_run(["--env", "t-maze", "--envs-per-update", "64", "--max-lag", "2"]).lag_bound == 2
    file = tmp_path / "old.toml"
    file.write_text('env = "CartPole-v1"\nenvs_per_update = 32\nenvs_per_actor = 16\n[learner]\nalgorithm = "ppo"\n')
    assert parse_run(["--config", str(file)]).columns == 16


def test_units_are_read_on_the_command_line_in_files_and_in_calls(tmp_path: Path) -> None:
    words = [
        "--env",
        "t-maze",
        "--total-steps",
        "1.5M",
        "--log-every",
        "20k",
        "--pbt.warmup",
        "2k",
        "--population",
        "2",
    ]
    words += ["--time-limit", "90s", "--stall-timeout", "2h", "--checkpoint-every", "10m", "--actor-timeout", "30"]
    config = parse_run(words)
    assert (config.total_steps, config.log_every, config.pbt.warmup) == (1_500_000, 20_000, 2000)
    assert (config.time_limit, config.stall_timeout) == (1.5, 120.0), "in minutes"
    assert (config.checkpoint_every, config.actor_timeout) == (600.0, 30.0), "in seconds"
    settings = {"total_steps": "1.5M", "time_limit": "90s", "checkpoint_every": "10m", "log_every": 20_000}
    called = with_settings({"env": "t-maze"} | settings)
    assert (called.total_steps, called.time_limit, called.checkpoint_every) == (1_500_000, 1.5, 600.0)
    file = tmp_path / "run.toml"
    file.write_text('env = "t-maze"\ntotal_steps = "1.5M"\ntime_limit = "90s"\ncheckpoint_every = "10m"\n')
    read = parse_run(["--config", str(file)])
    assert (read.total_steps, read.time_limit, read.checkpoint_every) == (1_500_000, 1.5, 600.0)
    with pytest.raises(EngramError, match="time_limit is '1y'; expected Minutes"):
        with_settings({"env": "t-maze", "time_limit": "1y"})


def test_defaults_are_printed_with_their_unit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_run(["--help"], env_required=True)
    said = " ".join(re.sub(r"[│\n]", " ", capsys.readouterr().out).split())
    for shown in ("--checkpoint-every DURATION", "(default: 60s)", "--stall-timeout DURATION", "(default: 10m)"):
        assert shown in said
    assert "Steps between two rows of metrics. (default: 20k)" in said
    assert "module:Class. (required)" in said


def test_a_call_without_an_environment_is_refused() -> None:
    with pytest.raises(EngramError, match="env is missing; allowed: boxworld"):
        with_settings({"core": "lstm"})


def test_names_of_other_libraries_are_explained_in_calls() -> None:
    for name, said in (
        ("batch_size", "here --envs-per-update counts the environments of an update"),
        ("n_epochs", "it is a setting of ppo: --algorithm-args epochs=N"),
        ("gae_lambda", "it is a setting of a2c and ppo, not of vtrace: --algorithm-args gae_lambda=VALUE"),
    ):
        with pytest.raises(EngramError, match=re.escape(said)):
            with_settings({"env": "t-maze", name: 3})


def test_explanations_name_settings_that_exist() -> None:
    known = flags_of(RunConfig) | {"--gif", "--plot"}
    for text in MEANINGS.values():
        assert {*re.findall(r"--[a-z][\w-]*", text)} <= known
        for option in re.findall(r"--algorithm-args (\w+)=", text):
            assert option in {each.name for each in fields(PPOSettings)}
    for name in OTHER_NAMES.values():
        assert "--" + name.replace("_", "-") in known


def test_a_removed_setting_of_saved_runs_is_ignored_and_former_names_are_refused() -> None:
    assert from_dict(RunConfig, {"pbt": {"patience": 20}}) == RunConfig()
    with pytest.raises(EngramError, match="unknown setting 'batch_size'"):
        from_dict(RunConfig, {"batch_size": 8})


@pytest.mark.parametrize("envs", [512, 1024, 2048])
def test_two_actors_on_a_gpu_fill_an_update(envs: int) -> None:
    """The flags that the page on speed names for a GPU."""
    learner = LearnerConfig(cuda_graph=True)
    config = RunConfig(
        device="cuda", act_on="cuda", num_actors=2, envs_per_actor=envs // 2, envs_per_update=envs, learner=learner
    )
    assert (config.columns, config.fixed_actors, config.lag_bound) == (envs, 2, 1)
