"""An environment with images, vectors and scalars in a Dict observation, and a level that `reset` takes."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class ManyLeaves(gymnasium.Env[Any, Any]):
    """Six steps; `room` is the level, 0..2, and can be chosen with `reset(options={"room": ...})`."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (20, 24, 3), np.uint8),
            "symbols": spaces.Box(0, 10, (7, 7, 2), np.uint8),
            "body": spaces.Dict({"joints": spaces.Box(-1, 1, (4,)), "height": spaces.Box(-9, 9, ())}),
            "room": spaces.Discrete(3),
        }
    )
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.room, self.t = (options or {}).get("room", int(self.np_random.integers(3))), 0
        if self.room not in range(3):
            raise ValueError(f"room is {self.room!r}; allowed: 0, 1, 2")
        return self._observation(), {"room": self.room}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._observation(), 1.0, self.t == 6, False, {"room": self.room}

    def render(self) -> Any:
        return np.full((30, 40, 3), 7 * self.t, np.uint8)

    def _observation(self) -> dict[str, Any]:
        camera = np.zeros((20, 24, 3), np.uint8)
        camera[:, : 3 * self.t + 1] = (255, 100, self.t)
        symbols = np.zeros((7, 7, 2), np.uint8)
        symbols[self.t, 0] = 5, 10
        body = {"joints": np.full(4, self.t / 6, np.float32), "height": np.float32(self.t - 2.5)}
        return {"camera": camera, "symbols": symbols, "body": body, "room": self.room}
