"""Preparation of a batch before the passes of a learner: minibatches, rewards, counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..actors.extras import NOVELTY
from ..actors.unroll import Unroll, some_environments
from ..agents.values import map_leaves
from .algorithms.algorithm import Targets
from .config import LearnerConfig


@dataclass
class Updates:
    """The updates that are made from one batch, under way."""

    batch: Unroll
    targets: Targets | None
    """Those of all updates; None where each update has its own."""
    cause: Tensor
    """See `cause_of`."""
    first: bool
    """Whether running moments of the inputs began with this batch."""
    within: Tensor
    """Whether all updates so far are within the algorithm's `target_kl`."""
    rows: list[Tensor] = field(default_factory=list[Tensor])
    """Of each update a row of `Unread.updates` (learners/learner.py)."""
    stopped: bool = False
    """Whether the remaining updates are left out."""


def with_bonus(batch: Unroll, bonus: float) -> Unroll:
    """The batch with what is new in its episode in units of rewards."""
    extras = batch.env.extras
    if extras is None or NOVELTY not in extras:
        return batch
    return batch._replace(env=batch.env._replace(extras=extras | {NOVELTY: bonus * extras[NOVELTY]}))


def learned_rewards(batch: Unroll, config: LearnerConfig) -> Tensor:
    """Rewards [T + 1, B] as they are learned from: clipped, and the bonus for what is new, scaled already."""
    reward, extras = batch.env.reward, batch.env.extras
    reward = reward.clamp(-config.reward_clip, config.reward_clip) if config.reward_clip else reward
    return reward + extras[NOVELTY] if config.novelty_bonus and extras is not None else reward


def cause_of(batch: Unroll) -> Tensor:
    """Cause of a batch that is not finite, as a float scalar: -2 an observation, -1 a reward, 0 neither; see CAUSES."""
    parts: list[Tensor] = []
    map_leaves(parts.append, batch.env.observation)
    cause = torch.where(batch.env.reward.isfinite().all(), 0.0, -1.0)
    for part in parts:
        if part.is_floating_point():
            cause = torch.where(part.isfinite().all(), cause, -2.0)
    return cause


def some_of(batch: Unroll, targets: Targets | None, chosen: slice | Tensor) -> tuple[Unroll, Targets | None]:
    """Some environments of a batch and their targets; where there are none, one of whose steps none is valid."""
    empty = isinstance(chosen, Tensor) and not len(chosen)
    chosen = slice(0, 1) if empty else chosen
    part = some_environments(batch, chosen)
    if empty:  # the other learners have all environments of this minibatch
        part = part._replace(env=part.env._replace(terminated=torch.ones_like(part.env.terminated)))
    return part, targets and Targets(*(x[:, chosen] for x in targets))


def valid_steps(batch: Unroll) -> int:
    """Steps of a batch whose action counted."""
    return int((~(batch.env.terminated | batch.env.truncated)[:-1]).sum())


def means(updates: Sequence[Sequence[float]]) -> list[float]:
    """Means of each metric over the updates of a batch; of several, values that are not finite are left out."""
    if len(updates) == 1:
        return list(updates[0])
    means: list[float] = []
    for metric in zip(*updates, strict=True):
        finite = [value for value in metric if math.isfinite(value)]
        means.append(sum(finite) / len(finite) if finite else math.nan)
    return means
