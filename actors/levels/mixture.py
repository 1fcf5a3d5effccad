"""Environments of several stages of a curriculum in one batch."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.values import map_leaves
from .stagger import GOLDEN

Shares = tuple[float, ...]  # Share of the environments in each stage; the shares sum to 1


def widths(first_index: int, num_envs: int, shares: Shares) -> list[int]:
    """Number of environments of each stage in one actor; across all actors, the counts follow the shares.

    Args:
        first_index: index of the actor's first environment in the run.
        num_envs: environments of the actor.
        shares: shares of the stages.
    """
    phases = (np.arange(first_index, first_index + num_envs) + 0.5) * GOLDEN % 1.0
    stages = np.searchsorted(np.cumsum(shares)[:-1], phases, side="right")
    return np.bincount(stages, minlength=len(shares)).tolist()


class MixtureBatch:
    """Concatenation of batches of environments; implements the part of the batch interface that actors use.

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
        """Return an attribute that all stages have in common: spaces, fields, name."""
        return getattr(self.__dict__["parts"][-1], name)

    @property
    def at_step(self) -> Callable[[], None]:
        """Callback that runs after every step of an environment, in batches that step them one by one."""
        return self.parts[0].at_step

    @at_step.setter
    def at_step(self, call: Callable[[], None]) -> None:
        for part in self.parts:
            part.at_step = call

    @property
    def action_mask(self) -> NDArray[Any] | None:
        """Valid actions [N, ...]; None for environments without masks."""
        masks = [part.action_mask for part in self.parts]
        return None if masks[0] is None else np.concatenate(masks)

    def new_observation(self) -> Any:
        return map_leaves(lambda *x: np.concatenate(x), *(part.new_observation() for part in self.parts))

    def reset_into(self, observation: Any, seed: int | None = None) -> None:
        for part, span in zip(self.parts, self._slices, strict=True):
            part.reset_into(_some(observation, span), seed)

    def step_into(self, actions: Any, observation: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        for part, span in zip(self.parts, self._slices, strict=True):
            ends = terminated[span], truncated[span]
            part.step_into(actions[span], _some(observation, span), reward[span], *ends)

    def cut(self, where: NDArray[np.bool_]) -> None:
        for part, span in zip(self.parts, self._slices, strict=True):
            part.cut(where[span])

    def episode_facts(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        within = [indices[(indices >= span.start) & (indices < span.stop)] - span.start for span in self._slices]
        return np.concatenate([part.episode_facts(selected) for part, selected in zip(self.parts, within, strict=True)])

    def privileged(self) -> NDArray[Any]:
        """Privileged values [N, P]."""
        return np.concatenate([part.privileged() for part in self.parts])

    def mark_seen(self, maps: NDArray[Any]) -> NDArray[Any]:
        """Write the current observations into maps [N, ...] and return the agents' cells [N, 2]."""
        return np.concatenate([p.mark_seen(maps[span]) for p, span in zip(self.parts, self._slices, strict=True)])

    def save(self) -> dict[str, Any]:
        """Return the state of all environments."""
        return {"parts": [part.save() for part in self.parts]}

    def restore(self, saved: dict[str, Any]) -> None:
        for part, state in zip(self.parts, saved["parts"], strict=True):
            part.restore(state)

    def close(self) -> None:
        for part in self.parts:
            part.close()


def _some(values: Any, span: slice) -> Any:
    return map_leaves(lambda x: x[span], values)
