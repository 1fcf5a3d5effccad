"""CartPole without velocities: the agent must infer them from earlier observations.

    rl-train --env engram.examples.masked_cartpole:MaskedCartPole --core gru

Any subclass of `gymnasium.Env` can be named in this way, as `module:Class`.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class MaskedCartPole(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole-v1 with only the cart's position and the pole's angle as observation, float32 [2]."""

    def __init__(self, render_mode: str | None = None, max_episode_steps: int = 500) -> None:
        super().__init__(gymnasium.make("CartPole-v1", render_mode=render_mode, max_episode_steps=max_episode_steps))
        box = self.env.observation_space
        self.observation_space = spaces.Box(box.low[[0, 2]], box.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Select position and angle from (position, velocity, angle, angular velocity)."""
        return observation[[0, 2]]
