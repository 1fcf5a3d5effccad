"""An agent's weights as one flat vector: what a learner publishes and an actor loads.

One contiguous float32 buffer travels through an object store without pickling or copies; parameters and persistent
buffers are laid out in the order of `state_dict`.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn


class Weights(NamedTuple):
    """One version of one population member's weights."""

    version: int
    """Number of updates that produced these weights."""
    member: int
    """Which member of the population they belong to (0 without a population)."""
    values: NDArray[np.float32]
    """float32 [P], every parameter and persistent buffer of the agent."""
    beginnings: int = 0
    """How often all environments had to begin anew: at every copy of another member's weights, at every new stage."""
    stage: int = 0
    """Stage of the member's curriculum, 0 is the first; it changes with a beginning only."""


@torch.no_grad()
def flatten(module: nn.Module) -> NDArray[np.float32]:
    """All weights of `module` as a new float32 array [P]."""
    parts = [value.detach().reshape(-1).float() for value in module.state_dict().values()]
    return torch.cat(parts).cpu().numpy()  # one copy, from whatever device


@torch.no_grad()
def load(module: nn.Module, values: NDArray[np.float32]) -> None:
    """Copy a vector made by `flatten` into `module`. Raises ValueError if the sizes differ."""
    tensors = list(module.state_dict().values())
    expected = sum(tensor.numel() for tensor in tensors)
    if len(values) != expected:
        raise ValueError(f"{len(values)} weights for an agent that has {expected}: another core or other options?")
    start = 0
    for tensor in tensors:
        part = np.array(values[start : start + tensor.numel()])  # a copy: shared memory is read-only
        tensor.copy_(torch.from_numpy(part).view(tensor.shape))
        start += tensor.numel()
