"""Linear recurrences over time without a loop over all steps, exact at resets.

    h_t = a_t * h_{t-1} + x_t        elementwise, real or complex, h_{t-1} = 0 where a new sequence begins

On a CPU, compiled code computes h step by step (cores/fast/scan.py). Elsewhere, blocks of about sqrt(T) consecutive
steps are processed in parallel from zero; with p_t the product of a since the block's start,

    h_t = (h_t from zero) + p_t * (h at the end of the previous block)

There is no division by powers of a, so nothing overflows (Blelloch 1990, "Prefix sums and their applications", 1.4).

Shapes: T steps, B environments, L steps per block, N blocks, "..." features.
"""

import math

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
    way = scan_compiled if can_compile(inputs) else scan_blocks
    return way(decay, inputs, reset, start, bptt_length)


def scan_blocks(decay: Tensor, inputs: Tensor, reset: Tensor, start: Tensor, bptt_length: int | None = None) -> Tensor:
    """Compute `scan` with torch operations, for every device and differentiable to any order."""
    length, constant = len(inputs), decay.shape[:2] == (1, 1)
    cut = bptt_length is not None and bptt_length < length
    if not cut and length <= SHORT:
        return _step_by_step(decay, inputs, reset, start)
    size = bptt_length if cut and bptt_length is not None else math.isqrt(length - 1) + 1
    inputs, reset, decay = _fold(inputs, size), _fold(reset, size), decay if constant else _fold(decay, size)
    local = scan_blocks(decay, inputs, reset, torch.zeros_like(inputs[0]))
    # Products of a since the block's start. After a reset, they are unused, and 0 if a varies between steps, so that
    # nan before the reset does not pass.
    if constant:
        product = decay.expand(size, *decay.shape[1:]).cumprod(0)
    else:
        product = scan_blocks(decay, torch.zeros_like(decay), reset, torch.ones_like(decay[0]))
    alive = (reset.cumsum(0) == 0).reshape(size, -1, *start.shape[:1], *[1] * (start.dim() - 1))
    shape = alive.shape[1:3]
    ends, decays = local[-1].unflatten(0, shape), product[-1].expand_as(local[-1]).unflatten(0, shape)
    carry, carries = start, list[Tensor]()
    for block in range(len(ends)):
        if cut and block > 0:
            carry = carry.detach()
        carries.append(carry)
        carry = ends[block] + decays[block] * torch.where(alive[-1, block], carry, 0)
    whole = local + product * torch.where(alive, torch.stack(carries), 0).flatten(1, 2)
    return whole.unflatten(1, shape).transpose(0, 1).flatten(0, 1)[:length]


def _fold(tensor: Tensor, size: int) -> Tensor:
    """Cut [T, B, ...] into N parallel blocks [L, N * B, ...]; steps beyond T are 0."""
    missing = -len(tensor) % size
    if missing:
        tensor = torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
    return tensor.unflatten(0, (-1, size)).transpose(0, 1).flatten(1, 2)


def _step_by_step(decay: Tensor, inputs: Tensor, reset: Tensor, start: Tensor) -> Tensor:
    any_reset = reset.any(1).tolist() if readable(reset) else [True] * len(reset)
    state, states = start, list[Tensor]()
    for t, starts in enumerate(any_reset):
        if starts:
            state = torch.where(reset[t].reshape(-1, *[1] * (state.dim() - 1)), 0, state)
        state = torch.addcmul(inputs[t], decay[t if len(decay) > 1 else 0].expand_as(state), state)
        states.append(state)
    return torch.stack(states)
