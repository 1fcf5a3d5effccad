"""The unroll: what an actor sends to the learner.

T steps of B environments under one version of the weights. Steps are aligned so that nothing has to be shifted:

    step t of env    what the environment said before the agent's t-th action: the reward there belongs to action t-1
    step t of agent  the action at that step, with the behavior policy's logits and value
    step T of env    the one to bootstrap from; it is step 0 of the next unroll of the same environments

Episodes end inside an unroll as in Gymnasium's NEXT_STEP autoreset: the step of the last observation carries the
flag, the action there is ignored, and the next step is the first of a new episode.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..agents.agent import AgentState
from ..agents.values import AgentOutput, EnvOutput, map_leaves

EPISODE_COLUMNS = ("env_index", "return", "length")
"""The first fields of `Unroll.episodes`; the environment's own episode fields follow."""


class Unroll(NamedTuple):
    """T steps of B environments."""

    initial_state: AgentState
    """The state the actor had at step 0, leaves [B, ...]."""
    env: EnvOutput
    """Steps 0..T, leaves [T + 1, B, ...]."""
    agent: AgentOutput
    """Steps 0..T-1, leaves [T, B, ...]."""
    weights_version: Tensor
    """int64 [B]: the version of the weights that acted."""
    member: int
    """The member of the population that acted (0 without a population)."""
    actor: int
    """The number of the actor that made this unroll."""
    episodes: Tensor
    """float32 [K, 3 + F]: the K episodes that ended here, in EPISODE_COLUMNS and the environment's own fields."""
    seconds: float
    """Wall time that acting took."""


def _map(function: Callable[..., Tensor], *unrolls: Unroll) -> Unroll:
    """`function(axis, *leaves)` of all that a learner reads, in a fixed order; finished episodes stay.

    The axis is that of the environments.
    """
    per_environment, per_step = partial(function, 0), partial(function, 1)
    return unrolls[0]._replace(
        initial_state=map_leaves(per_environment, *(unroll.initial_state for unroll in unrolls)),
        env=map_leaves(per_step, *(unroll.env for unroll in unrolls)),
        agent=map_leaves(per_step, *(unroll.agent for unroll in unrolls)),
        weights_version=per_environment(*(unroll.weights_version for unroll in unrolls)),
    )


def some_environments(unroll: Unroll, chosen: slice | Tensor) -> Unroll:
    """Some environments of an unroll, by a slice or their indices (int64 [K]), which copies them.

    The finished episodes stay with a slice that begins at environment 0.
    """
    found = _map(lambda axis, x: x[chosen] if axis == 0 else x[:, chosen], unroll)
    first = isinstance(chosen, slice) and not chosen.start
    return found if first else found._replace(episodes=unroll.episodes[:0])


def join(parts: list[Unroll]) -> Unroll:
    """Unrolls of equal length side by side, as one."""
    if len(parts) == 1:
        return parts[0]
    whole = _map(lambda axis, *x: torch.cat(x, axis), *parts)
    return whole._replace(episodes=torch.cat([part.episodes for part in parts]))


def map_tensors(function: Callable[[Tensor], Tensor], unroll: Unroll) -> Unroll:
    """Every tensor that a learner reads replaced, in a fixed order; finished episodes stay."""
    return _map(lambda _, x: function(x), unroll)


def tensors(unroll: Unroll) -> list[Tensor]:
    """Every tensor that a learner reads, in the order of `map_tensors`."""
    found: list[Tensor] = []
    map_tensors(lambda leaf: found.append(leaf) or leaf, unroll)
    return found


def with_tensors(unroll: Unroll, others: Iterable[Tensor]) -> Unroll:
    """The same unroll with others in the places of `tensors`."""
    rest = iter(others)
    return map_tensors(lambda _: next(rest), unroll)


def to_device(unroll: Unroll, device: torch.device) -> Unroll:
    """The same unroll on another device."""
    return map_tensors(lambda leaf: leaf.to(device), unroll)


def nbytes(unroll: Unroll) -> int:
    """Bytes of all tensors of an unroll."""
    return unroll.episodes.nbytes + sum(leaf.nbytes for leaf in tensors(unroll))
