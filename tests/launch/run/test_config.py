"""Settings that depend on each other."""

from pathlib import Path

import pytest

from engram.launch.run.config import RunConfig, from_dict, to_dict
from engram.launch.run.run_directory import RunDirectory
from engram.launch.run.run_flags import parse_run


def test_actors_share_the_environments_of_an_update() -> None:
    assert RunConfig(batch_size=64).actor_envs == 64
    assert RunConfig(batch_size=64, num_actors=3).actor_envs == 22
    assert RunConfig(batch_size=4, num_actors=9).actor_envs == 1
    assert RunConfig(batch_size=64, num_actors="auto").actor_envs == 8
    assert RunConfig(batch_size=64, num_actors=2, sync=True).columns == 64
    assert RunConfig(batch_size=64, envs_per_actor=5).actor_envs == 5


def test_the_bound_on_policy_lag() -> None:
    assert RunConfig(batch_size=64, num_actors=3).lag_bound == 1
    assert RunConfig(batch_size=8, envs_per_actor=64).lag_bound == 8
    assert RunConfig(batch_size=64, max_lag=5).lag_bound == 5
    assert RunConfig(batch_size=64, max_lag=0).lag_bound == 0
    assert RunConfig(batch_size=64, max_lag=5, sync=True).lag_bound == 0
    with pytest.raises(
        ValueError, match="max_lag is 0; allowed with 5 environments per actor and updates of 64: auto, or at"
    ):
        RunConfig(batch_size=64, envs_per_actor=5, max_lag=0)
    with pytest.raises(ValueError, match="max_lag is -1"):
        RunConfig(max_lag=-1, sync=True)
    with pytest.raises(ValueError, match="envs_per_actor is 0; allowed: auto, or at least 1"):
        RunConfig(envs_per_actor=0)


def test_a_none_among_the_options_of_world_and_core_survives_the_file(tmp_path: Path) -> None:
    """TOML has no None; left out it would be the option's default, another network."""
    config = parse_run(["--env", "boxworld", "--core", "rmc", "--core-args", "gate=None"])
    assert config.agent.core_args["gate"] is None
    with RunDirectory.create(tmp_path / "run", to_dict(config), name="x") as run:
        assert from_dict(RunConfig, run.config()) == config
