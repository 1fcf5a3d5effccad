"""Batches: assembly from unrolls, shares of several learners, and preparation for updates."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..actors.extras import NOVELTY
from ..actors.unroll import Unroll, join, some_environments
from .config import LearnerConfig

BURN_IN = "burn_in"  # Extra that marks the steps excluded from the loss: bool [T + 1, B]


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
        taken, missing = list[Unroll](), self.batch_size
        while missing > 0:
            part = self._parts.popleft()
            width = len(part.weights_version)
            if width > missing:
                self._parts.appendleft(some_environments(part, slice(missing, width)))
                part = some_environments(part, slice(0, missing))
            taken.append(part)
            missing -= width
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
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], metrics: Tensor
    ) -> tuple[Sequence[Tensor | None], Tensor]:
        """Sum the parameters' gradients (None where no learner has one) and metrics [M], in one exchange."""
        return gradients, metrics

    def close(self) -> None:
        """Leave the group, even while an exchange waits for a lost learner."""


ALONE = Group()


def learned_rewards(batch: Unroll, config: LearnerConfig) -> Tensor:
    """Rewards [T + 1, B] for learning: clipped rewards plus the scaled novelty bonus."""
    reward, extras = batch.env.reward, batch.env.extras
    reward = reward.clamp(-config.reward_clip, config.reward_clip) if config.reward_clip else reward
    return reward + extras[NOVELTY] if config.novelty_bonus and extras is not None else reward


def valid_steps(batch: Unroll) -> Tensor:
    """Whether the action of each step had an effect, bool [T, B]."""
    return ~(batch.env.terminated | batch.env.truncated)[:-1]
