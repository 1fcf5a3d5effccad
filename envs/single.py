"""One compiled environment with Gymnasium's ordinary interface."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import error

from ..base.errors import check_keys
from .arrays import KEY, Array
from .engine import BatchedEnv


class SingleEnv(gymnasium.Env[Array, int]):
    """One environment with the same compiled rules as the batched engine, without autoreset."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012
    batch_class: ClassVar[type[BatchedEnv]]

    def __init__(self, *, render_mode: str | None = None, **parameters: Any) -> None:
        self.batch = self.batch_class(1, render_mode=render_mode, **parameters)  # pyright: ignore
        self.observation_space = self.batch.single_observation_space
        self.action_space = self.batch.single_action_space
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode, in the level `options["level"]` if there is one."""
        super().reset(seed=seed)
        values = options or {}
        check_keys("reset", "option", values, ("level",))
        self.batch.reset(seed=seed)
        if values:
            self.batch.set_level(0, values["level"])
        return self.batch.observe_all()[0], self._info()

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Step the environment; after the end of an episode, call reset() first."""
        if not self.batch.started or self.batch.state.over[0]:
            raise error.ResetNeeded("step() after the end of an episode or before reset(): call reset() first")
        observation, reward, terminated, truncated, _ = self.batch.step(np.atleast_1d(action))
        return observation[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), self._info()

    def render(self) -> Array | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return an image of the full board, uint8 [H, W, 3]; None unless render_mode is "rgb_array"."""
        return None if self.render_mode is None else self.batch.draw(0)

    @property
    def level(self) -> dict[str, Any]:
        """The current level, in the form that `reset(options={"level": ...})` accepts."""
        return self.batch.level(0)

    def _info(self) -> dict[str, Any]:
        mask = self.batch.action_mask
        info = {} if mask is None else {KEY: mask[0]}
        return info | {name: getattr(self.batch.state, name)[0].item() for name in self.batch.episode_fields}


def single(batch: type[BatchedEnv]) -> type[SingleEnv]:
    """Create the class of a single environment from that of a batch, with its documentation."""
    doc = (batch.__doc__ or "").replace("N games", "One game", 1).replace("N agents, each", "One agent", 1)
    members = {"__doc__": doc, "__module__": batch.__module__, "batch_class": batch}
    return type(batch.__name__.removesuffix("Batch"), (SingleEnv,), members)
