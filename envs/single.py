"""One instance as an ordinary Gymnasium environment: the batched engine with a batch of one."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import error

from ..base.messages import check_keys, check_whole
from .arrays import Array
from .engine import BatchedEnv, parameter_names
from .masks import KEY


class SingleEnv(gymnasium.Env[Array, int]):
    """One environment with the same compiled rules as the batched engine, without autoreset.

    `reset(options={"level": {...}})` starts a custom level; `env.unwrapped.level` is the current one in the same form.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012
    batch_class: ClassVar[type[BatchedEnv]]

    def __init__(self, *, render_mode: str | None = None, **parameters: Any) -> None:
        check_keys(type(self).__name__, "parameter", parameters, parameter_names(self.batch_class))
        self.batch = self.batch_class(1, render_mode=render_mode, **parameters)  # pyright: ignore
        self.observation_space = self.batch.single_observation_space
        self.action_space = self.batch.single_action_space
        self.render_mode = render_mode
        self._reward = np.zeros(1, np.float32)
        self._terminated, self._truncated = np.zeros(1, np.bool_), np.zeros(1, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode, in the level `options["level"]` if there is one."""
        if seed is not None:
            check_whole("seed", seed, 0)
        super().reset(seed=seed)
        values = {} if options is None else options
        check_keys("reset", "option", values, ("level",))
        if "level" in values:
            self.batch.check_level("level", values["level"])
        levels = {"level": [values["level"]]} if "level" in values else None
        observation, _ = self.batch.reset(seed=seed, options=levels)
        return observation[0], self._info()

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Step the environment; after the end of an episode, call reset() first."""
        if not self.batch.started or self.batch.state.over[0]:
            raise error.ResetNeeded("step() after the end of an episode or before reset(): call reset() first")
        if np.size(action) != 1:
            raise ValueError(f"action is {action!r}; expected one integer, {self.batch.allowed_actions}")
        observation = self.batch.new_observation()
        self.batch.step_into(np.reshape(action, 1), observation, self._reward, self._terminated, self._truncated)
        return observation[0], float(self._reward[0]), bool(self._terminated[0]), bool(self._truncated[0]), self._info()

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
