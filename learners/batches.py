"""Batches: assembly from unrolls, shares of several learners, and preparation for updates."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..actors.extras import NOVELTY
from ..actors.unroll import Unroll, join, some_environments
from ..agents.values import map_leaves
from .config import LearnerConfig


class Batcher:
    """Split and join unrolls of one member along the batch axis into batches of `batch_size` environments; every
    environment is used exactly once."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._parts: deque[Unroll] = deque()
        self._waiting = 0

    def add(self, unroll: Unroll) -> None:
        self._parts.append(unroll)
        self._waiting += len(unroll.weights_version)

    @property
    def complete(self) -> bool:
        return self._waiting >= self.batch_size

    def take(self) -> Unroll | None:
        """Remove and return the oldest `batch_size` environments; return None while there are fewer."""
        if not self.complete:
            return None
        taken: list[Unroll] = []
        missing = self.batch_size
        while missing:
            part = self._parts.popleft()
            width = len(part.weights_version)
            if width > missing:
                self._parts.appendleft(some_environments(part, slice(missing, width)))
                part = some_environments(part, slice(0, missing))
            taken.append(part)
            missing -= min(width, missing)
        self._waiting -= self.batch_size
        return join(taken)

    def next(self, pull: Callable[[], Unroll | None]) -> Unroll | None:
        """Return the next batch, pulling unrolls as needed; None if `pull` returns None, with unrolls still queued."""
        while (batch := self.take()) is None:
            unroll = pull()
            if unroll is None:
                return None
            self.add(unroll)
        return batch


class Group:
    """Group of a single learner: its share is the full batch, and nothing is exchanged."""

    rank, size, first = 0, 1, 0  # `first`: number of environments of the preceding learners

    def __deepcopy__(self, _: object) -> "Group":
        return self

    def all_environments(self, width: int) -> int:
        """Number of environments in the full batch; this learner's share has `width` of them."""
        return width

    def share(self, chosen: Tensor, width: int) -> Tensor:
        """Convert indices into the full batch (int64 [K]) to indices into this learner's share; drop all others."""
        return chosen[(self.first <= chosen) & (chosen < self.first + width)] - self.first

    def total(self, *parts: Any) -> Sequence[Any]:
        """Sum each tensor or float over all learners; its shape must be the same on all of them."""
        return parts

    def reduce(
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], metrics: Tensor, cause: Tensor
    ) -> tuple[Sequence[Tensor | None], Tensor, Tensor]:
        """Sum the parameters' gradients (None where no learner has one) and metrics [M], and take the minimum of
        `cause_of` over all shares, in one exchange."""
        return gradients, metrics, cause

    def close(self) -> None:
        """Leave the group, even while an exchange waits for a lost learner."""


ALONE = Group()


def with_bonus(batch: Unroll, bonus: float) -> Unroll:
    """Return the batch with its novelty extra scaled to units of reward."""
    extras = batch.env.extras
    if extras is None or NOVELTY not in extras:
        return batch
    return batch._replace(env=batch.env._replace(extras=extras | {NOVELTY: bonus * extras[NOVELTY]}))


def learned_rewards(batch: Unroll, config: LearnerConfig) -> Tensor:
    """Rewards [T + 1, B] for learning: clipped rewards plus the scaled novelty bonus."""
    reward, extras = batch.env.reward, batch.env.extras
    reward = reward.clamp(-config.reward_clip, config.reward_clip) if config.reward_clip else reward
    return reward + extras[NOVELTY] if config.novelty_bonus and extras is not None else reward


def cause_of(batch: Unroll) -> Tensor:
    """Cause of a non-finite batch as a float scalar: -2 an observation, -1 a reward, 0 neither; see CAUSES."""
    parts: list[Tensor] = []
    map_leaves(parts.append, batch.env.observation)
    cause = torch.where(batch.env.reward.isfinite().all(), 0.0, -1.0)
    for part in parts:
        if part.is_floating_point():
            cause = torch.where(part.isfinite().all(), cause, -2.0)
    return cause


def valid_steps(batch: Unroll) -> Tensor:
    """Whether the action of each step had an effect, bool [T, B]."""
    return ~(batch.env.terminated | batch.env.truncated)[:-1]
