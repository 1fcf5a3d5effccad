"""Scalars of a Gymnasium environment's `info` are facts for `--decode`."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import engram
from engram.launch.evaluate.decode import decode


class Cue(gymnasium.Env):
    """Shows a cue at the first step only; `info` has it at every step."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.t = int(self.np_random.integers(2)), 0
        return np.array([2 * self.cue - 1, 0], np.float32), {"cue": self.cue, "half": 0.5}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 0.0, self.t == 6, False, {"cue": self.cue, "half": 0.5}


def actor():
    config = engram.configure(Cue, "gru", normalise_observations=False, core_args={"hidden_size": 8}, local=True)
    factory = replace(config.factory(), num_envs=60, unroll_length=1)
    return factory.make_actor(0)


def test_a_cue_in_info_is_decoded_from_the_state() -> None:
    first, second = decode(actor(), "cue", 2)[:2]
    assert first.accuracy > 0.95
    assert second.chance < 0.75


@pytest.mark.parametrize(("fact", "said"), [("half", "info has 0.5 for 'half'"), ("goal", "info has no number for")])
def test_other_facts_are_refused(fact, said) -> None:
    with pytest.raises(ValueError, match=said):
        decode(actor(), fact, 2)
