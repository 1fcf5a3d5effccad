"""Environments whose valid actions change from step to step and that raise an error at an invalid action."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from engram.envs.boxworld import BoxWorldBatch

LENGTH = 7


class Masked(gymnasium.Env[Any, Any]):
    """One observation at all steps, so that only the mask differs; an episode's last mask is all False."""

    choices: tuple[int, ...] = (5,)
    observed = False

    def __init__(self, empty_at: int = LENGTH) -> None:
        self.empty_at = empty_at
        image = spaces.Box(0, 255, (4, 4, 3), np.uint8)
        mask = spaces.MultiBinary(sum(self.choices))
        self.observation_space = spaces.Dict({"image": image, "action_mask": mask}) if self.observed else image
        single = len(self.choices) == 1
        self.action_space = spaces.Discrete(self.choices[0]) if single else spaces.MultiDiscrete(self.choices)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._see()

    def step(self, action: Any) -> Any:
        for chosen, part in zip(np.atleast_1d(action), self.parts, strict=True):
            assert part[chosen], f"action {action} is invalid: {self.parts}"
        self.time += 1
        observation, info = self._see()
        return observation, float(self.parts[0][0]), self.time == LENGTH, False, info

    def _see(self) -> Any:
        self.parts = [self.np_random.random(n) < 0.5 for n in self.choices]
        for part in self.parts:
            part[self.np_random.integers(len(part))] = True
            if self.time >= self.empty_at:
                part[:] = False
        image, mask = np.ones((4, 4, 3), np.uint8), np.concatenate(self.parts).astype(np.int8)
        return (
            ({"image": image, "action_mask": mask}, {}) if self.observed else (image, {"action_mask": self._info(mask)})
        )

    def _info(self, mask: Any) -> Any:
        return mask


class EmptyLater(Masked):
    """Its fourth mask of every episode is all False."""

    def __init__(self) -> None:
        super().__init__(empty_at=3)


class MaskedDict(Masked):
    """The mask is an entry of the observation."""

    observed = True


class MaskedChoices(Masked):
    """A MultiDiscrete space; its mask has the form that the space itself takes."""

    choices = (3, 2, 4)

    def _info(self, mask: Any) -> Any:
        return tuple(np.split(mask, np.cumsum(self.choices)[:-1]))


class MaskedBoxWorld(BoxWorldBatch):
    """One of engram's own environments with masks: which directions are valid depends on the random stream."""

    @property
    def action_mask(self) -> Any:
        bits = self.state.random[:, None] >> np.arange(self.single_action_space.n, dtype=np.uint64)
        mask = (bits & np.uint64(1)).astype(np.bool_)
        mask[:, -1] |= ~mask.any(1)
        return mask

    def step_into(self, actions: Any, *arrays: Any) -> None:
        valid = self.action_mask[np.arange(self.num_envs), actions]
        assert (valid | self.state.over).all(), "an invalid action"
        super().step_into(actions, *arrays)


ENVIRONMENTS = [f"{__name__}:{each.__name__}" for each in (Masked, MaskedDict, MaskedChoices, MaskedBoxWorld)]
