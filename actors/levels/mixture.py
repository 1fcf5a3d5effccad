"""Environments of several stages of a curriculum side by side, in one batch."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.values import map_leaves
from .stagger import GOLDEN

Shares = tuple[float, ...]
"""Share of the environments in each stage; they sum to 1."""


def widths(first_index: int, num_envs: int, shares: Shares) -> list[int]:
    """Environments of each stage among those of an actor; over all actors together the counts follow the shares.

    Args:
        first_index: index of the actor's first environment among all environments of the run.
        num_envs: environments of the actor.
        shares: of the stages.
    """
    phases = (np.arange(first_index, first_index + num_envs) + 0.5) * GOLDEN % 1.0
    stages = np.searchsorted(np.cumsum(shares)[:-1], phases, side="right")
    return np.bincount(stages, minlength=len(shares)).tolist()


class MixtureBatch:
    """Batches of environments one after another, as one batch; the actor's part of the contract of a batch.

    Args:
        parts: batches with the same spaces and episode fields, at least one.
    """

    replayable = False

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)
        bounds = np.cumsum([0, *(part.num_envs for part in self.parts)]).tolist()
        self.num_envs = bounds[-1]
        self._slices = [slice(low, high) for low, high in pairwise(bounds)]

    def __getattr__(self, name: str) -> Any:
        """What does not differ between the stages: spaces, fields, name."""
        return getattr(self.__dict__["parts"][-1], name)

    @property
    def at_step(self) -> Callable[[], None]:
        """Called after every step of an environment; only where environments step in turn."""
        return self.parts[0].at_step

    @at_step.setter
    def at_step(self, call: Callable[[], None]) -> None:
        for part in self.parts:
            part.at_step = call

    @property
    def action_mask(self) -> NDArray[Any] | None:
        """Valid actions [N, ...]; None where all are valid."""
        masks = [part.action_mask for part in self.parts]
        return None if masks[0] is None else np.concatenate(masks)

    def new_observation(self) -> Any:
        """Room for the observations of a step."""
        return map_leaves(lambda *x: np.concatenate(x), *(part.new_observation() for part in self.parts))

    def reset_into(self, observation: Any, seed: int | None = None) -> None:
        """Begin new episodes in all environments."""
        for part, here in zip(self.parts, self._slices, strict=True):
            part.reset_into(_some(observation, here), seed)

    def step_into(self, actions: Any, observation: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        """Step all environments and write the results into these arrays."""
        for part, here in zip(self.parts, self._slices, strict=True):
            ends = terminated[here], truncated[here]
            part.step_into(actions[here], _some(observation, here), reward[here], *ends)

    def cut(self, where: NDArray[np.bool_]) -> None:
        """End the episodes of some environments, bool [N]."""
        for part, here in zip(self.parts, self._slices, strict=True):
            part.cut(where[here])

    def episode_facts(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Episode fields of environments [K], in ascending order: float32 [K, F]."""
        within = [indices[(indices >= here.start) & (indices < here.stop)] - here.start for here in self._slices]
        return np.concatenate([part.episode_facts(each) for part, each in zip(self.parts, within, strict=True)])

    def privileged(self) -> NDArray[Any]:
        """Privileged values [N, P]."""
        return np.concatenate([part.privileged() for part in self.parts])

    def mark_seen(self, seen: NDArray[Any]) -> NDArray[Any]:
        """Write what is observed now into maps [N, ...]; returns the agents' cells [N, 2]."""
        return np.concatenate([p.mark_seen(seen[here]) for p, here in zip(self.parts, self._slices, strict=True)])

    def save(self) -> dict[str, Any]:
        """State of all environments."""
        return {"parts": [part.save() for part in self.parts]}

    def restore(self, saved: dict[str, Any]) -> None:
        """Continue from a state made by `save`."""
        for part, state in zip(self.parts, saved["parts"], strict=True):
            part.restore(state)

    def close(self) -> None:
        """Close all environments."""
        for part in self.parts:
            part.close()


def _some(values: Any, here: slice) -> Any:
    return map_leaves(lambda x: x[here], values)
