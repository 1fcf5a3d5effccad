"""Linear recurrences over time without a loop over all steps, exact at resets.

    h_t = a_t * h_{t-1} + x_t        elementwise, real or complex, h_{t-1} = 0 where a new sequence begins

On a CPU, compiled code computes h step by step (cores/fast/scan.py). Elsewhere, T steps are cut into blocks of about
sqrt(T) consecutive steps. All blocks are processed in parallel from zero,
which takes sqrt(T) operations on wide tensors; with p_t the product of a since the block's beginning,

    h_t = (h_t from zero) + p_t * (h at the end of the previous block),

so that only the ends of the blocks are sequential, again sqrt(T) operations. There is no division by powers of a, so
nothing overflows, for sequences of any length (Blelloch 1990, "Prefix sums and their applications", section 1.4).

Shapes: T steps, B environments, L steps per block, N blocks, "..." features.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..cores.core import readable
from ..cores.fast.scan import can_compile, scan_compiled

SHORT = 24  # Largest number of steps in a block that is processed step by step


def scan(decay: Tensor, inputs: Tensor, reset: Tensor, start: Tensor, bptt_length: int | None = None) -> Tensor:
    """Compute h_t = decay_t * h_{t-1} + inputs_t for all T steps: [T, B, ...].

    Args:
        decay: a [T, B, ...], or [1, 1, ...] if it is constant.
        inputs: x [T, B, ...], of the same type as `decay`.
        reset: bool [T, B]; where set, h_{t-1} is replaced by zero, by selection, so that not even nan passes.
        start: h_{-1} [B, ...].
        bptt_length: no gradient passes from step t to step t - 1 where t is a multiple of this.
    """
    if can_compile(inputs):
        return scan_compiled(decay, inputs, reset, start, bptt_length)
    return scan_blocks(decay, inputs, reset, start, bptt_length)


def scan_blocks(decay: Tensor, inputs: Tensor, reset: Tensor, start: Tensor, bptt_length: int | None = None) -> Tensor:
    """Compute `scan` with torch operations, for every device and differentiable to any order."""
    length = len(inputs)
    cut = bptt_length is not None and bptt_length < length
    if not cut and length <= SHORT:
        return _step_by_step(decay, inputs, reset, start)
    size = bptt_length if cut and bptt_length is not None else math.isqrt(length - 1) + 1
    blocks = _fold(decay, inputs, reset, size)
    local, product = _from_zero(blocks), _products(blocks)
    alive = (blocks.reset.cumsum(0) == 0).reshape(size, -1, *start.shape[:1], *[1] * (start.dim() - 1))
    ends, decays = (
        local.unflatten(1, alive.shape[1:3])[-1],
        product[-1].expand_as(local[-1]).unflatten(0, alive.shape[1:3]),
    )
    carry, carries = start, list[Tensor]()
    for block in range(len(ends)):
        if cut and block > 0:
            carry = carry.detach()
        carries.append(carry)
        carry = ends[block] + decays[block] * torch.where(alive[-1, block], carry, 0)
    entering = torch.where(alive, torch.stack(carries), 0).flatten(1, 2)
    whole = local + product * entering
    return whole.unflatten(1, alive.shape[1:3]).transpose(0, 1).flatten(0, 1)[:length]


class _Blocks(NamedTuple):
    """T steps as N parallel blocks; steps beyond T have decay and input 0."""

    decay: Tensor  # [L, N * B, ...] or [1, 1, ...]
    inputs: Tensor  # [L, N * B, ...]
    reset: Tensor  # bool [L, N * B]


def _fold(decay: Tensor, inputs: Tensor, reset: Tensor, size: int) -> _Blocks:
    def fold(tensor: Tensor) -> Tensor:
        missing = -len(tensor) % size
        if missing:
            tensor = torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
        return tensor.unflatten(0, (-1, size)).transpose(0, 1).flatten(1, 2)

    return _Blocks(decay if _constant(decay) else fold(decay), fold(inputs), fold(reset))


def _from_zero(blocks: _Blocks) -> Tensor:
    """Compute h of every block from zero: [L, N * B, ...]."""
    return scan_blocks(blocks.decay, blocks.inputs, blocks.reset, torch.zeros_like(blocks.inputs[0]))


def _products(blocks: _Blocks) -> Tensor:
    """Compute a_t a_{t-1} ... since the block's beginning [L, N * B, ...], or [L, 1, ...] if a is constant. After a
    reset, the product is unused, and 0 if a varies between steps, so that nan before the reset does not pass."""
    decay, _, reset = blocks
    if _constant(decay):
        return decay.expand(len(reset), *decay.shape[1:]).cumprod(0)
    return scan_blocks(decay, torch.zeros_like(decay), reset, torch.ones_like(decay[0]))


def _step_by_step(decay: Tensor, inputs: Tensor, reset: Tensor, start: Tensor) -> Tensor:
    any_reset = reset.any(1).tolist() if readable(reset) else [True] * len(reset)
    state, states = start, list[Tensor]()
    for t, starts in enumerate(any_reset):
        if starts:
            state = torch.where(reset[t].reshape(-1, *[1] * (state.dim() - 1)), 0, state)
        state = torch.addcmul(inputs[t], decay[t if len(decay) > 1 else 0].expand_as(state), state)
        states.append(state)
    return torch.stack(states)


def _constant(decay: Tensor) -> bool:
    """Whether a is the same at every step of every environment."""
    return decay.shape[:2] == (1, 1)
