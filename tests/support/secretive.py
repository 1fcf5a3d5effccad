"""An environment that keeps its state to itself."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle


class Secretive(gymnasium.Env[Any, Any], EzPickle):
    """Copies of it begin again, as those of some emulators do."""

    observation_space = gymnasium.spaces.Box(0, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        EzPickle.__init__(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.ones(3, np.float32), 1.0, bool(self.np_random.random() < 0.2), False, {}
