"""Recurrences with matrix states over chunks of consecutive steps, exact at resets.

A core defines the result of a chunk of L steps from the state before it. The unroll is split into chunks
that begin at every reset and never contain one (`blocks.py`); chunks of one depth run in parallel.

Shapes: T steps, B environments, N chunks, L steps per chunk.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from .blocks import cut_into_blocks

States: TypeAlias = tuple[Tensor, ...]
Chunk: TypeAlias = Callable[[tuple[Tensor, ...], Tensor, States], tuple[Tensor, States]]
"""chunk(steps, each [N, L, ...]; used, bool [N, L]; states before, each [N, ...]) -> outputs [N, L, ...], states after.

A step that is not used must leave the state as it is; its output is not read. Unused steps come last.
"""

LENGTH = 32  # Steps per chunk, at most


def unroll_chunks(
    chunk: Chunk,
    steps: Sequence[Tensor],
    reset: Tensor,
    start: States,
    initial: Callable[[int], States],
    bptt_length: int | None = None,
    length: int = LENGTH,
) -> tuple[Tensor, States]:
    """Outputs of all T steps [T, B, ...] and the states after the last one.

    Args:
        chunk: the steps of one chunk.
        steps: inputs of each step, each [T, B, ...].
        reset: bool [T, B]; where set, the state before the step is the initial one.
        start: states before step 0, each [B, ...].
        initial: initial(n) returns n initial states, each [n, ...].
        bptt_length: no gradient passes from step t to step t - 1 where t is a multiple of it.
        length: steps per chunk, at most.
    """
    rows = reset.shape[1]
    blocks = cut_into_blocks(reset, length if bptt_length is None else min(length, bptt_length), bptt_length)
    depths = blocks.depths()
    flat = [tensor.flatten(0, 1) for tensor in steps]
    ends: list[States] = []
    outputs: list[Tensor] = []
    first, count = torch.empty_like(blocks.steps[0]), 0
    for depth, group in enumerate(depths):
        if depth:
            previous = blocks.previous[depth - 1] - depths[depth - 1].start
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
