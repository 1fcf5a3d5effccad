"""Replay of earlier unrolls by off-policy algorithms."""

from collections import deque

import torch
from torch import Tensor

from ..actors.packed import map_tensors, tensors, with_tensors
from ..actors.unroll import Unroll, join, some_environments
from .batches import BURN_IN
from .config import LearnerConfig


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
