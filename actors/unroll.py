"""The unroll: the data that an actor sends to the learner, T steps of B environments with one version of the weights.

    step t of env    output of the environment before the agent's t-th action; its reward belongs to action t-1
    step t of agent  the action at that step, with the behavior policy's logits and value
    step T of env    used to bootstrap; it is step 0 of the next unroll of the same environments

Episodes end inside an unroll as in Gymnasium's NEXT_STEP autoreset: the step of the last observation has the
flag, the action at that step is ignored, and the next step is the first of a new episode.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..agents.agent import AgentState
from ..agents.values import AgentOutput, EnvOutput, map_leaves

EPISODE_COLUMNS = ("env_index", "return", "length")  # First fields of `Unroll.episodes`


class Stored(NamedTuple):
    """Environments `first` to `end` of a packed unroll in Ray's store."""

    parcel: Any  # Ray's reference
    first: int
    end: int


class Unroll(NamedTuple):
    initial_state: AgentState  # Recurrent state at step 0, leaves [B, ...]
    env: EnvOutput  # Steps 0..T, leaves [T + 1, B, ...]
    agent: AgentOutput  # Steps 0..T-1, leaves [T, B, ...]
    weights_version: Tensor  # int64 [B]: version of the acting weights
    member: int  # Member of the population that acted (0 without a population)
    actor: int  # Index of the actor that made this unroll
    episodes: Tensor
    """float32 [K, 3 + F]: the K episodes that ended here, with EPISODE_COLUMNS and the environment's own fields."""
    seconds: float  # Wall time of acting in seconds
    stored: tuple[Stored, ...] = ()
    """Location of state and steps if this process does not receive them; both are then None."""


def map_axes(function: Callable[..., Tensor], *unrolls: Unroll) -> Unroll:
    """Apply `function(batch_axis, *leaves)` to all tensors that a learner reads, in a fixed order."""
    per_environment, per_step = partial(function, 0), partial(function, 1)
    return unrolls[0]._replace(
        initial_state=map_leaves(per_environment, *(unroll.initial_state for unroll in unrolls)),
        env=map_leaves(per_step, *(unroll.env for unroll in unrolls)),
        agent=map_leaves(per_step, *(unroll.agent for unroll in unrolls)),
        weights_version=per_environment(*(unroll.weights_version for unroll in unrolls)),
    )


def some_environments(unroll: Unroll, chosen: slice | Tensor) -> Unroll:
    """Select environments by a slice (views), or by indices (int64 [K]; copies). The result contains the finished
    episodes only for a slice that begins at environment 0."""
    selected = map_axes(lambda axis, x: x[chosen] if axis == 0 else x[:, chosen], unroll)
    if unroll.stored:
        assert isinstance(chosen, slice), "only complete unrolls are shuffled"
        selected = selected._replace(stored=_some_stored(unroll.stored, *chosen.indices(len(unroll.weights_version))))
    first = isinstance(chosen, slice) and not chosen.start
    return selected if first else selected._replace(episodes=unroll.episodes[:0])


def _some_stored(stored: Iterable[Stored], first: int, end: int, _: int) -> tuple[Stored, ...]:
    """Select environments `first` to `end`, counted across all parts."""
    chosen: list[Stored] = []
    for part in stored:
        selected = part._replace(first=part.first + max(first, 0), end=min(part.first + end, part.end))
        chosen += [selected] if selected.first < selected.end else []
        first, end = first - (part.end - part.first), end - (part.end - part.first)
    return tuple(chosen)


def join(parts: list[Unroll]) -> Unroll:
    """Join unrolls of equal length along the batch axis."""
    if len(parts) == 1:
        return parts[0]
    whole = map_axes(lambda axis, *x: torch.cat(x, axis), *parts)
    stored = tuple(piece for part in parts for piece in part.stored)
    return whole._replace(episodes=torch.cat([part.episodes for part in parts]), stored=stored)
