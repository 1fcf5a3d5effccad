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
    """Updates from one batch in progress."""

    batch: Unroll
    targets: Targets | None  # Targets of all updates; None if each update has its own.
    cause: Tensor  # See `cause_of`
    first: bool  # Whether running moments of the inputs start with this batch
    within: Tensor  # Whether all updates so far are within the algorithm's `target_kl`
    rows: list[Tensor] = field(default_factory=list[Tensor])
    """One row of `Unread.updates` (learners/learner.py) for each update."""
    stopped: bool = False  # Whether the remaining updates are skipped


def with_bonus(batch: Unroll, bonus: float) -> Unroll:
    """Return the batch with its novelty extra in units of rewards."""
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


def some_of(batch: Unroll, targets: Targets | None, chosen: slice | Tensor) -> tuple[Unroll, Targets | None]:
    """Select environments of a batch and their targets; an empty selection gives one without valid steps."""
    empty = isinstance(chosen, Tensor) and not len(chosen)
    chosen = slice(0, 1) if empty else chosen
    part = some_environments(batch, chosen)
    if empty:  # other learners have all environments of this minibatch
        part = part._replace(env=part.env._replace(terminated=torch.ones_like(part.env.terminated)))
    return part, targets and Targets(*(x[:, chosen] for x in targets))


def valid_steps(batch: Unroll) -> int:
    """Number of steps of a batch whose action had an effect."""
    return int((~(batch.env.terminated | batch.env.truncated)[:-1]).sum())


def means(updates: Sequence[Sequence[float]]) -> list[float]:
    """Mean of each metric over the updates of a batch; with several updates, non-finite values are left out."""
    if len(updates) == 1:
        return list(updates[0])
    means: list[float] = []
    for metric in zip(*updates, strict=True):
        finite = [value for value in metric if math.isfinite(value)]
        means.append(sum(finite) / len(finite) if finite else math.nan)
    return means
