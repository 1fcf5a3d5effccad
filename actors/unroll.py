"""The unroll: what an actor sends to the learner.

T steps of B environments under one version of the weights. Steps are aligned so that nothing has to be shifted:

    step t of env    what the world said before the agent's t-th action: the reward there belongs to action t-1
    step t of agent  the action at that step, with the behaviour policy's logits and value
    step T of env    the one to bootstrap from; it is step 0 of the next unroll of the same environments

Episodes end inside an unroll as in Gymnasium's NEXT_STEP autoreset: the step of the last observation carries the
flag, the action there is ignored, and the next step is the first of a new episode.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..agents.agent import AgentState
from ..agents.cores.core import map_state
from ..agents.values import AgentOutput, EnvOutput, map_observation

EPISODE_COLUMNS = ("env_index", "return", "length")
"""The first fields of `Unroll.episodes`; the world's own episode fields follow."""


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
    """float32 [K, 3 + F]: the K episodes that ended here, in EPISODE_COLUMNS and the world's own fields."""
    seconds: float
    """Wall time that acting took."""


def some_environments(unroll: Unroll, part: slice) -> Unroll:
    """Some environments of an unroll; the finished episodes stay with the part that begins at environment 0."""
    whole = part.start in (None, 0)
    return unroll._replace(
        initial_state=map_state(lambda x: x[part], unroll.initial_state),
        env=_map_outputs(lambda x: x[:, part], unroll.env),
        agent=AgentOutput(*(x[:, part] for x in unroll.agent)),
        weights_version=unroll.weights_version[part],
        episodes=unroll.episodes if whole else unroll.episodes[:0],
    )


def environments(unroll: Unroll, chosen: Tensor) -> Unroll:
    """The environments with these indices (int64 [K]) of a batch, without its finished episodes."""
    return unroll._replace(
        initial_state=map_state(lambda x: x[chosen], unroll.initial_state),
        env=_map_outputs(lambda x: x[:, chosen], unroll.env),
        agent=AgentOutput(*(x[:, chosen] for x in unroll.agent)),
        weights_version=unroll.weights_version[chosen],
        episodes=unroll.episodes[:0],
    )


def join(parts: list[Unroll]) -> Unroll:
    """Unrolls of equal length side by side, as one."""
    if len(parts) == 1:
        return parts[0]
    return parts[0]._replace(
        initial_state=map_state(lambda *x: torch.cat(x), *(part.initial_state for part in parts)),
        env=_map_outputs(lambda *x: torch.cat(x, 1), *(part.env for part in parts)),
        agent=AgentOutput(*(torch.cat(x, 1) for x in zip(*(part.agent for part in parts), strict=True))),
        weights_version=torch.cat([part.weights_version for part in parts]),
        episodes=torch.cat([part.episodes for part in parts]),
        seconds=sum(part.seconds for part in parts),
    )


def map_tensors(function: Callable[[Tensor], Tensor], unroll: Unroll) -> Unroll:
    """The same unroll with every tensor that a learner reads replaced, in a fixed order; finished episodes stay."""
    return unroll._replace(
        initial_state=map_state(function, unroll.initial_state),
        env=_map_outputs(function, unroll.env),
        agent=AgentOutput(*map(function, unroll.agent)),
        weights_version=function(unroll.weights_version),
    )


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


def _map_outputs(function: Any, *outputs: EnvOutput) -> EnvOutput:
    observation = map_observation(function, *(output.observation for output in outputs))
    return EnvOutput(
        observation, *(function(*leaves) for leaves in zip(*(output[1:] for output in outputs), strict=True))
    )


def nbytes(unroll: Unroll) -> int:
    """Bytes of all tensors of an unroll."""
    total = 0

    def count(x: Tensor) -> Tensor:
        nonlocal total
        total += x.nbytes
        return x

    to_count = (unroll.initial_state, unroll.agent, unroll.weights_version, unroll.episodes)
    for part in to_count:
        map_state(count, part)
    _map_outputs(count, unroll.env)
    return total
