"""Sequences in blocks: a recursion over T steps as a few matrix multiplications over blocks of steps.

A batch of sequences is split into blocks of consecutive steps which begin at each reset and never contain one. Inside a
block, a core may process all steps at once; only the state between blocks is sequential. Steps before
a reset are not in the blocks after it, so they cannot affect them, not even as 0 * nan.

Shapes: T steps, B environments, L steps per block, N blocks.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Blocks(NamedTuple):
    """N blocks, ordered by depth: number of earlier blocks of the same sequence (since its reset or t = 0)."""

    steps: Tensor
    """int64 [L, N]: the flat index t * B + b of each step of each block; a short block repeats its first step."""
    used: Tensor  # bool [L, N]: False where a short block only repeats its first step
    slot: Tensor  # int64 [T * B]: index of each step in its block
    block: Tensor  # int64 [T * B]: the block of each step; environment b's first block is block b.
    previous: list[Tensor]  # For depth 1, 2, ...: the block before each block of that depth, int64

    def depths(self) -> list[slice]:
        """The blocks of depth 0, 1, 2, ..."""
        later = [len(before) for before in self.previous]
        ends = [self.steps.shape[1] - sum(later[depth:]) for depth in range(len(later) + 1)]
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def cut_into_blocks(reset: Tensor, length: int, period: int | None = None) -> Blocks:
    """Split T steps of B environments into blocks of at most `length` steps that begin where `reset` [T, B] is set.
    With a period, blocks also begin at its multiples (counted from t = 0), as continuations of their sequence."""
    batch = reset.shape[1]
    time = torch.arange(reset.shape[0], device=reset.device).unsqueeze(1)
    fresh = reset | (time == 0)
    cut = fresh if period is None else fresh | (time % period == 0)
    slot = (time - torch.where(cut, time, 0).cummax(0).values) % length
    count = (slot == 0).cumsum(0)
    depth = (count - torch.where(fresh, count, 0).cummax(0).values).flatten()
    slot = slot.flatten()

    begin = (slot == 0).nonzero().squeeze(1)
    sizes = depth[begin].bincount().tolist()
    begin = begin[depth[begin].argsort(stable=True)]
    every = torch.arange(len(slot), device=reset.device)
    block = torch.empty_like(every).index_copy_(0, begin, every[: len(begin)])[every - slot * batch]
    steps = begin + torch.arange(length, device=reset.device).unsqueeze(1) * batch
    inside = steps < len(every)
    used = inside & (block[torch.where(inside, steps, begin)] == every[: len(begin)])
    previous = [block[later - batch] for later in begin.split(sizes)[1:]]
    return Blocks(torch.where(used, steps, begin), used, slot, block, previous)
