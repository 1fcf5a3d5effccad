"""Batches: assembly from unrolls, replay, shares of several learners, and preparation for updates."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..actors.extras import NOVELTY
from ..actors.unroll import Unroll, join, map_tensors, some_environments, tensors, with_tensors
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


class Replay:
    """Bounded buffer of unrolls, oldest first: every batch of an off-policy algorithm also contains some of them, with
    their recorded recurrent states. Its size counts every environment of an unroll.

    V-trace corrects for replay as it corrects for lag (Espeholt et al. 2018, section 5.2.2). `replay_burn_in` excludes
    the first steps of replayed unrolls from the loss, which recompute the state (Kapturowski et al. 2019, R2D2,
    section 3).
    """

    def __init__(self) -> None:
        self._stored: deque[Unroll] = deque()
        self._restored: list[list[Tensor]] = []
        """Tensors of a checkpoint, until the next batch provides their structure."""

    def __len__(self) -> int:
        """Number of single-environment unrolls in the buffer."""
        return sum(len(unroll.weights_version) for unroll in self._stored)

    def mix(self, batch: Unroll, config: LearnerConfig, seed: int) -> Unroll:
        """Append `replay_ratio` * B older unrolls, sampled uniformly, to a batch [T, B] of fresh ones, and store the
        batch. The result contains only the episodes of fresh unrolls."""
        fresh = batch._replace(episodes=batch.episodes[:0])
        self._stored.extend(with_tensors(fresh, leaves) for leaves in self._restored)
        self._restored = []
        parts = self._sample(round(config.replay_ratio * len(batch.weights_version)), seed)
        # Actors may overwrite these tensors.
        self._stored.append(map_tensors(torch.Tensor.clone, fresh))
        while len(self) > config.replay_size and len(self._stored) > 1:
            self._stored.popleft()
        if steps := config.replay_burn_in:
            batch, parts = _mark(batch, 0), [_mark(part, steps) for part in parts]
        return join([batch, *parts])

    def _sample(self, count: int, seed: int) -> list[Unroll]:
        """Sample `count` stored unrolls with replacement, grouped by batch; none from an empty buffer."""
        if not self._stored:
            return []
        chosen = torch.randint(len(self), (count,), generator=torch.Generator().manual_seed(seed)).sort().values
        parts, first = list[Unroll](), 0
        for unroll in self._stored:
            width = len(unroll.weights_version)
            selected = chosen[(chosen >= first) & (chosen < first + width)] - first
            if len(selected):
                parts.append(some_environments(unroll, selected))
            first += width
        return parts

    def state_dict(self) -> list[list[Tensor]]:
        """All stored tensors, so that a resumed run learns from the same batches."""
        return self._restored or [tensors(unroll) for unroll in self._stored]

    def load_state_dict(self, state: list[list[Tensor]]) -> None:
        self._stored.clear()
        self._restored = [list(leaves) for leaves in state]


def _mark(unroll: Unroll, steps: int) -> Unroll:
    marks = torch.zeros_like(unroll.env.terminated)
    marks[:steps] = True
    return unroll._replace(env=unroll.env._replace(extras=(unroll.env.extras or {}) | {BURN_IN: marks}))
