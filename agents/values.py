"""Values passed between environment and agent at every step, and weights sent from learner to actors.

T steps, B environments. Leaves of outputs have the leading axes [B, ...] for one step or [T, B, ...] for an unroll.
"""

from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

ObservationTensor: TypeAlias = Any
"""A tensor [..., B, *shape], or a (nested) dict of tensors for environments with Dict observations."""


class EnvOutput(NamedTuple):
    """Output of the environment at a step, before the agent acts."""

    observation: ObservationTensor  # [..., B, *shape], uint8 or float32
    reward: Tensor  # [..., B] float32: the reward for the action before this step
    terminated: Tensor  # [..., B] bool: the episode ended at this step by the rules of the task
    truncated: Tensor  # [..., B] bool: the episode was truncated at this step
    action_mask: Tensor | None = None
    """[..., B, sum of choices] bool: the valid options of every choice; None in an environment where all are valid."""
    extras: dict[str, Tensor] | None = None
    """Arrays [..., B, ...] by name that losses read and the policy does not (actors/extras.py), or None."""


class AgentOutput(NamedTuple):
    """Output of the behavior policy at a step."""

    action: Tensor
    """[..., B] int64, or [..., B, K] for K simultaneous choices; [..., B, K] float32 for a Box of K values."""
    logits: Tensor
    """[..., B, sum of choices] float32, unnormalized log-probabilities, -inf where masked; for a Box see specs.py."""
    value: Tensor  # [..., B] float32


def map_leaves(function: Any, *values: Any) -> Any:
    """Apply `function` to the leaves of values of equal structure: all but tuples and dicts; None stays None."""
    first = values[0]
    if first is None:
        return None
    if isinstance(first, tuple):
        return type(first)(*map(partial(map_leaves, function), *values))
    if isinstance(first, dict):
        return {key: map_leaves(function, *(value[key] for value in values)) for key in first}
    return function(*values)


class Weights(NamedTuple):
    """One version of one population member's weights, as one flat float32 vector in the order of `state_dict`, which
    passes through an object store without pickling or copying."""

    version: int  # Number of updates that produced these weights
    member: int  # Member of the population (0 without a population)
    values: NDArray[np.float32] | Tensor  # float32 [P]; a tensor for actors on the learner's device
    beginnings: int = 0  # Number of restarts of all environments: copies of another member's weights, and new stages
    stage: int | tuple[float, ...] = 0  # Stage of the curriculum, or the share of each; changes only with `beginnings`
    ready: Any = None  # Event after which another stream may read `values`; None if they are ready.


def flatten(module: nn.Module) -> NDArray[np.float32]:
    """Copy all weights of `module` to a new float32 array [P]."""
    return flat(module).cpu().numpy()  # one copy, from any device


@torch.no_grad()
def flat(module: nn.Module) -> Tensor:
    """Copy all weights of `module` to a new float32 tensor [P] on its device."""
    return torch.cat([value.detach().reshape(-1).float() for value in module.state_dict().values()])


@torch.no_grad()
def load(module: nn.Module, values: NDArray[np.float32] | Tensor) -> None:
    """Copy a vector made by `flatten` or `flat` into `module`. Raises ValueError if the sizes differ."""
    tensors = list(module.state_dict().values())
    sizes = [tensor.numel() for tensor in tensors]
    if len(values) != sum(sizes):
        raise ValueError(f"{len(values)} weights for an agent that has {sum(sizes)}: different core or options?")
    if not isinstance(values, Tensor):
        values = torch.from_numpy(np.array(values))  # a copy: shared memory is read-only
    for tensor, part in zip(tensors, values.to(tensors[0].device).split(sizes), strict=True):
        tensor.copy_(part.view(tensor.shape))
