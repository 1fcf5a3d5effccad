"""Scalars of a Gymnasium environment's `info` are facts for `--decode`."""

import sys
from contextlib import closing, contextmanager
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import engram
from engram.envs.foreign import environment_maker
from engram.launch.evaluate.studies import decode, fact_values


class Cue(gymnasium.Env):
    """Shows a cue and an angle at the first step only; `info` has them at every step."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    episode_fields = ("cue",)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.t, self.angle = int(self.np_random.integers(2)), 0, float(self.np_random.uniform(-1, 1))
        return np.array([2 * self.cue - 1, self.angle], np.float32), self._info()

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 0.0, self.t == 6, False, self._info()

    def _info(self):
        return {"cue": self.cue, "angle": self.angle, "half": 0.5} | ({"late": 1} if self.t else {})


@environment_maker
def cues(num_envs: int, mode: str, processes: bool = False):
    kind = AsyncVectorEnv if processes else SyncVectorEnv
    return kind([Cue] * num_envs, autoreset_mode=AutoresetMode(mode))


sys.modules["info_facts"] = sys.modules[__name__]
VECTORS = [{"mode": mode.value} for mode in AutoresetMode] + [{"mode": "NextStep", "processes": True}]


@contextmanager
def acting(env=Cue, workers=0, **env_args):
    config = engram.configure(
        env, "gru", env_args=env_args, normalize_observations=False, core_args={"hidden_size": 8}, local=True
    )
    factory = replace(config.factory(), num_envs=60, unroll_length=1, env_workers=workers)
    torch.manual_seed(0)
    with closing(factory.make_actor(0)) as actor:
        yield actor


def test_a_cue_in_info_is_decoded_from_the_state() -> None:
    with acting() as actor:
        first, second = decode(actor, "cue", 2)[:2]
    assert first.accuracy > 0.95
    assert second.chance < 0.75


@pytest.mark.parametrize(("env_args", "workers"), [*((each, 0) for each in VECTORS), ({}, 2)])
def test_vector_environments_and_workers_have_the_same_facts(env_args, workers) -> None:
    with acting() as plain:
        expected = decode(plain, "cue", 2)
    with acting("info_facts:cues" if env_args else Cue, workers, **env_args) as actor:
        assert decode(actor, "cue", 2) == expected


@pytest.mark.parametrize("env_args", VECTORS[:3])
def test_scalars_are_those_of_the_last_reset_or_step_across_episodes(env_args) -> None:
    """The first observation of an episode shows its cue, the next ones nothing."""
    with acting("info_facts:cues", **env_args) as actor:
        seen = np.full(60, np.nan)
        for t in range(16):
            shown = np.array(actor._env_output.observation)[:, 0]
            seen[shown != 0] = (shown[shown != 0] + 1) / 2
            if t % 7 != 6:  # an observation at which an episode ends
                np.testing.assert_array_equal(actor.batch.info_scalars("cue"), seen)
            actor.unroll()


def test_a_real_valued_scalar_is_decoded_as_its_quartile() -> None:
    with acting() as actor:
        values = actor.batch.info_scalars("angle")
        bins = fact_values(actor.batch, "angle", np.ones(60, np.bool_))
        first = decode(actor, "angle", 2)[0]
    assert np.bincount(bins).tolist() == [15] * 4
    assert (np.diff(bins[np.argsort(values)]) >= 0).all()
    assert first.chance == 0.25
    assert first.accuracy > 0.6


@pytest.mark.parametrize("fact", ["goal", "late"])
def test_a_fact_that_is_missing_is_refused(fact) -> None:
    with acting() as actor, pytest.raises(ValueError, match=f"info has no number for '{fact}'"):
        decode(actor, fact, 2)
