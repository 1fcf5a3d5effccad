"""Recurrences with matrix states over chunks of consecutive steps, exact at resets.

A core computes a chunk of L steps from the state before it. The unroll is split into blocks of consecutive steps; every
reset begins a block, so steps before it cannot affect later blocks, not even as 0 * nan. Blocks of equal depth run in
parallel. Shapes: T steps, B environments, N chunks, L steps per chunk.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

States: TypeAlias = tuple[Tensor, ...]
Chunk: TypeAlias = Callable[[tuple[Tensor, ...], Tensor, States], tuple[Tensor, States]]
"""chunk(steps, each [N, L, ...]; used, bool [N, L]; states before, each [N, ...]) -> outputs [N, L, ...], states after.
An unused step must not change the state; its output is not read. Unused steps come last."""

LENGTH = 32  # Largest number of steps per chunk


class Blocks(NamedTuple):
    """N blocks, ordered by depth: the number of earlier blocks of the same sequence (since its reset or t = 0)."""

    steps: Tensor  # int64 [L, N]: flat index t * B + b of each step of each block
    used: Tensor  # bool [L, N]: False where a short block only repeats its first step
    slot: Tensor  # int64 [T * B]: index of each step in its block
    block: Tensor  # int64 [T * B]: the block of each step; environment b's first block is block b.
    depths: list[slice]  # The blocks of depth 0, 1, 2, ...


def cut_into_blocks(reset: Tensor, length: int, period: int | None = None) -> Blocks:
    """Split T steps of B environments into blocks of at most `length` steps that begin where `reset` [T, B] is set.
    With a period, blocks also begin at multiples of the period (counted from t = 0), continuing their sequence."""
    batch = reset.shape[1]
    time = torch.arange(reset.shape[0], device=reset.device).unsqueeze(1)
    fresh = reset | (time == 0)
    cut = fresh if period is None else fresh | (time % period == 0)
    slot = (time - torch.where(cut, time, 0).cummax(0).values) % length
    count = (slot == 0).cumsum(0)
    depth = (count - torch.where(fresh, count, 0).cummax(0).values).flatten()
    slot = slot.flatten()

    begin = (slot == 0).nonzero().squeeze(1)
    ends = depth[begin].bincount().cumsum(0).tolist()
    begin = begin[depth[begin].argsort(stable=True)]
    every = torch.arange(len(slot), device=reset.device)
    block = torch.empty_like(every).index_copy_(0, begin, every[: len(begin)])[every - slot * batch]
    steps = begin + torch.arange(length, device=reset.device).unsqueeze(1) * batch
    inside = steps < len(every)
    used = inside & (block[torch.where(inside, steps, begin)] == every[: len(begin)])
    return Blocks(torch.where(used, steps, begin), used, slot, block, list(map(slice, [0, *ends], ends)))


def unroll_chunks(
    chunk: Chunk,
    steps: Sequence[Tensor],
    reset: Tensor,
    start: States,
    initial: Callable[[int], States],
    bptt_length: int | None = None,
    length: int = LENGTH,
) -> tuple[Tensor, States]:
    """Return the outputs of all T steps [T, B, ...] and the states after the last step.

    Args:
        steps: inputs of each step, each [T, B, ...].
        reset, bptt_length: as in `Core.unroll`.
        start: states before step 0, each [B, ...].
        initial: initial(n) returns n initial states, each [n, ...].
        length: largest number of steps per chunk.
    """
    rows = reset.shape[1]
    blocks = cut_into_blocks(reset, length if bptt_length is None else min(length, bptt_length), bptt_length)
    flat = [tensor.flatten(0, 1) for tensor in steps]
    ends: list[States] = []
    outputs: list[Tensor] = []
    first, count = torch.empty_like(blocks.steps[0]), 0
    for depth, group in enumerate(blocks.depths):
        if depth:
            previous = blocks.block[blocks.steps[0, group] - rows] - blocks.depths[depth - 1].start
            before = tuple(leaf.index_select(0, previous) for leaf in ends[-1])
            if bptt_length is not None:
                cut = (blocks.steps[0, group] // rows) % bptt_length == 0
                before = tuple(torch.where(_like(cut, leaf), leaf.detach(), leaf) for leaf in before)
        else:  # the first B chunks begin at t = 0, the others at a reset
            fresh = initial(group.stop)
            before = tuple(
                torch.cat([torch.where(_like(reset[0], initial_leaf), new[:rows], initial_leaf), new[rows:]])
                for new, initial_leaf in zip(fresh, start, strict=True)
            )
        used = blocks.used[:, group].T
        used = used[:, : int(used.sum(1).max())]
        index = blocks.steps[: used.shape[1], group].T
        chunk_steps = tuple(tensor.index_select(0, index.flatten()).unflatten(0, index.shape) for tensor in flat)
        result, end = chunk(chunk_steps, used, before)
        ends.append(end)
        outputs.append(result.flatten(0, 1))
        first[group] = count + used.shape[1] * torch.arange(len(used), device=first.device)
        count += used.numel()
    order = first[blocks.block] + blocks.slot
    whole = torch.cat(outputs).index_select(0, order).unflatten(0, tuple(reset.shape))
    last = blocks.block[-rows:]
    return whole, tuple(torch.cat(leaves).index_select(0, last) for leaves in zip(*ends, strict=True))


def _like(flag: Tensor, leaf: Tensor) -> Tensor:
    """Reshape bool [N] to broadcast with a leaf [N, ...]."""
    return flag.reshape(-1, *[1] * (leaf.dim() - 1))
