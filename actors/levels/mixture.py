"""Environments of one actor in different stages of a curriculum, or in different phases of an episode."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.values import map_leaves

GOLDEN = (5**0.5 - 1) / 2  # The fractional parts of its multiples are evenly spread over 0..1 for any count
Shares = tuple[float, ...]  # Share of the environments in each stage; the shares sum to 1


def widths(first_index: int, num_envs: int, shares: Shares) -> list[int]:
    """Number of environments of each stage in an actor whose first environment has this index in the run; across all
    actors, the counts follow the shares."""
    phases = (np.arange(first_index, first_index + num_envs) + 0.5) * GOLDEN % 1.0
    stages = np.searchsorted(np.cumsum(shares)[:-1], phases, side="right")
    return np.bincount(stages, minlength=len(shares)).tolist()


class MixtureBatch:
    """Batch of the environments of several batches with the same spaces and episode fields, as far as actors use it."""

    replayable = False

    def __init__(self, parts: Sequence[Any]) -> None:
        bounds = np.cumsum([0, *(part.num_envs for part in parts)]).tolist()
        self.num_envs, self.batches = bounds[-1], parts
        self.parts = [(part, slice(low, high)) for part, (low, high) in zip(parts, pairwise(bounds), strict=True)]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that all stages have in common, such as a space."""
        return getattr(self.__dict__["parts"][-1][0], name)

    @property
    def action_mask(self) -> NDArray[Any] | None:
        masks = [part.action_mask for part, _ in self.parts]
        return None if masks[0] is None else np.concatenate(masks)

    def new_observation(self) -> Any:
        return map_leaves(lambda *x: np.concatenate(x), *(part.new_observation() for part, _ in self.parts))

    def reset_into(self, observation: Any, seed: int | None = None) -> None:
        for part, span in self.parts:
            part.reset_into(_some(observation, span), seed)

    def step_into(self, actions: Any, observation: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        for part, span in self.parts:
            ends = terminated[span], truncated[span]
            part.step_into(actions[span], _some(observation, span), reward[span], *ends)

    def cut(self, where: NDArray[np.bool_]) -> None:
        for part, span in self.parts:
            part.cut(where[span])

    def episode_facts(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        within = [indices[(indices >= span.start) & (indices < span.stop)] - span.start for _, span in self.parts]
        return np.concatenate([part.episode_facts(x) for (part, _), x in zip(self.parts, within, strict=True)])

    def privileged(self) -> NDArray[Any]:
        return np.concatenate([part.privileged() for part, _ in self.parts])

    def mark_seen(self, maps: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([part.mark_seen(maps[span]) for part, span in self.parts])

    def save(self) -> dict[str, Any]:
        return {"parts": [part.save() for part, _ in self.parts]}

    def restore(self, saved: dict[str, Any]) -> None:
        for (part, _), state in zip(self.parts, saved["parts"], strict=True):
            part.restore(state)

    def close(self) -> None:
        for part, _ in self.parts:
            part.close()


def _some(values: Any, span: slice) -> Any:
    return map_leaves(lambda x: x[span], values)


class Stagger:
    """Selection of one episode per environment to truncate: the one in progress after a number of steps in 1..`steps`.

    All environments begin together, at the start of a run and of every stage. If episodes have a fixed length, or while
    none is solved, they would also end together: each batch would contain only one phase of the episode.
    """

    def __init__(self, steps: int, first_index: int, num_envs: int) -> None:
        phases = (np.arange(first_index, first_index + num_envs) * GOLDEN) % 1.0
        # Steps until each environment's episode is cut; 0 if no cut remains
        self.left: NDArray[np.int64] = (1 + phases * steps).astype(np.int64) * (steps > 0)

    def due(self, over: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """Return the environments to cut after a step, bool [N]; None if there are none. An environment is never cut if
        the step at which its cut is due ends its episode (`over`, bool [N])."""
        if not self.left.any():
            return None
        due = (self.left == 1) & ~over
        self.left = np.maximum(self.left - 1, 0)
        return due if due.any() else None
