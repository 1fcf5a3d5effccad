"""Wrappers with running statistics of their own are refused with the flag that replaces them."""

from typing import Any

import gymnasium
import pytest
from gymnasium import wrappers

from engram.envs.foreign import ForeignBatch, environment_maker
from engram.envs.foreign.vector import VectorBatch
from engram.launch.entry import rl_train


@environment_maker
def observations() -> gymnasium.Env:
    return wrappers.TimeLimit(wrappers.NormalizeObservation(gymnasium.make("CartPole-v1")), 20)


@environment_maker
def rewards() -> gymnasium.Env:
    return wrappers.NormalizeReward(gymnasium.make("CartPole-v1"))


@environment_maker
def vector_observations(num_envs: int) -> gymnasium.vector.VectorEnv:
    return wrappers.vector.RecordEpisodeStatistics(wrappers.vector.NormalizeObservation(_cartpoles(num_envs)))


@environment_maker
def vector_rewards(num_envs: int) -> gymnasium.vector.VectorEnv:
    return wrappers.vector.NormalizeReward(_cartpoles(num_envs))


@environment_maker
def rewards_inside(num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec("CartPole-v1", num_envs, "sync", wrappers=[wrappers.NormalizeReward])


@environment_maker
def observations_in_processes(num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec("CartPole-v1", num_envs, "async", wrappers=[wrappers.NormalizeObservation])


@environment_maker
def episodes(num_envs: int) -> gymnasium.vector.VectorEnv:
    return wrappers.vector.RecordEpisodeStatistics(_cartpoles(num_envs))


def _cartpoles(num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec("CartPole-v1", num_envs, "vector_entry_point")


@pytest.mark.parametrize(
    ("make", "flag"),
    [
        (vector_observations, "--normalize-observations"),
        (vector_rewards, "--normalize-returns"),
        (rewards_inside, "--normalize-returns"),
        pytest.param(observations_in_processes, "--normalize-observations", marks=pytest.mark.integration),
    ],
)
def test_vector_environments_with_statistics_are_refused(make: Any, flag: str) -> None:
    with pytest.raises(ValueError, match=rf"mine is wrapped in Normalize.* in no checkpoint.*{flag}"):
        VectorBatch(make, 2, name="mine")


def test_statistics_of_episodes_are_allowed() -> None:
    VectorBatch(episodes, 2, name="mine").close()


@pytest.mark.parametrize(
    ("name", "flag"), [("observations", "--normalize-observations"), ("rewards", "--normalize-returns")]
)
def test_a_factory_with_statistics_is_one_line_and_exit_code_2(
    name: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        rl_train(["--env", f"{__name__}:{name}", "--local", "--total-steps", "10"])
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert flag in printed
    assert "Traceback" not in printed


def test_an_id_with_statistics_is_refused() -> None:
    gymnasium.register("Normalized-v0", entry_point=observations)
    try:
        with pytest.raises(ValueError, match=r"NormalizeObservation.*--normalize-observations"):
            ForeignBatch(lambda: gymnasium.make("Normalized-v0"), 2, name="Normalized-v0")
    finally:
        del gymnasium.registry["Normalized-v0"]
