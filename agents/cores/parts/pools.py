"""Linear filters over a batch of sequences, exact at resets and without a loop over time.

The pools of a filter hold p_t = F p_{t-1} + g x_t (F [k, k], g [k], one filter per feature), so that after j steps

    p_{t+j} = F^{j+1} p_{t-1} + sum_{s=0..j} F^{j-s} g x_{t+s}

is one matrix product with the inputs and the pools at the start, the same for every block of steps (blocks.py). Only
the pools at the start of each block follow each other.

Shapes: T steps, B environments, P features, k pools, N blocks of BLOCK steps.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...unrolling.blocks import Blocks

BLOCK = 16
"""Steps per block: longer blocks cost more products per step, shorter ones more starts to chain."""


class LinearFilter(NamedTuple):
    """p_t = feedback p_{t-1} + gain x_t, float64."""

    feedback: Tensor
    """F [k, k]."""
    gain: Tensor
    """g [k]."""


def chained(rates: list[float]) -> LinearFilter:
    """Low-pass filters in a row: p^n_t = a_n p^{n-1}_t + (1 - a_n) p^n_{t-1}, p^0_t = x_t, a_n = rates[n - 1].

    Row n of F is a_n times row n-1 plus 1 - a_n at n; g_n = a_1 ... a_n (Stepleton et al. 2018, section 2; App. G
    multiplies the pools from the right, and has 1 - 1/b for the newest input's 1/b).
    """
    size = len(rates)
    feedback, gain = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    for n, rate in enumerate(rates):
        if n > 0:
            feedback[n] = rate * feedback[n - 1]
        feedback[n, n] += 1 - rate
        gain[n] = math.prod(rates[: n + 1])
    return LinearFilter(feedback, gain)


def parallel(rates: list[float]) -> LinearFilter:
    """Low-pass filters side by side: p^n_t = a_n x_t + (1 - a_n) p^n_{t-1} (Stepleton et al. 2018, figure 1b)."""
    rate = torch.tensor(rates, dtype=torch.float64)
    return LinearFilter(torch.diag(1 - rate), rate)


def half_lives(linear: LinearFilter) -> list[float]:
    """Of every pool: steps after which half of the sum of its response to one input has passed.

    That sum over n steps is (I - F)^-1 (I - F^n) g; between two steps it is interpolated.
    """
    feedback, gain = linear
    one = torch.eye(len(gain), dtype=torch.float64)
    inverse = torch.linalg.inv(one - feedback)

    def passed(pool: int, steps: int) -> float:
        done = inverse @ (one - torch.linalg.matrix_power(feedback, steps)) @ gain
        return float(done[pool] / (inverse @ gain)[pool])

    found: list[float] = []
    for pool in range(len(gain)):
        low, high = 0, 1
        while passed(pool, high) < 0.5:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if passed(pool, middle) >= 0.5 else (middle, high)
        found.append(low + (0.5 - passed(pool, low)) / (passed(pool, high) - passed(pool, low)))
    return found


def block_response(linear: LinearFilter) -> Tensor:
    """Weights of inputs and first values in each pool at each step of a block: float64 [k, BLOCK, BLOCK + k].

    The last axis weighs the block's BLOCK inputs, then the k pools at its start.
    """
    feedback, gain = linear
    powers = [torch.eye(len(gain), dtype=torch.float64)]
    for _ in range(BLOCK):
        powers.append(feedback @ powers[-1])
    impulse = torch.stack([power @ gain for power in powers])
    step = torch.arange(BLOCK)
    lag = step.unsqueeze(1) - step
    from_inputs = torch.where(lag >= 0, impulse.T[:, lag.clamp(min=0)], 0.0)
    from_start = torch.stack(powers[1:], dim=1)
    return torch.cat([from_inputs, from_start], dim=-1)


def block_columns(inputs: Tensor, start: Tensor, response: Tensor, blocks: Blocks) -> Tensor:
    """Inputs [T, B, P] and pools at t = 0 [B, k, P] -> [BLOCK + k, N, P]: each block's inputs, then pools at its start.

    `response @ columns` are the pools at every step. `start` must be zero where t = 0 begins a new sequence.
    """
    size, features = response.shape[0], inputs.shape[-1]
    columns = inputs.new_zeros(BLOCK + size, blocks.steps.shape[1], features)
    columns[:BLOCK] = inputs.flatten(0, 1).index_select(0, blocks.steps.flatten()).view_as(columns[:BLOCK])
    entering = columns[BLOCK:]
    entering[:, : start.shape[0]] = start.transpose(0, 1)
    # What a block adds to the pools by its end, and how much of the pools at its start is left there.
    added = (response[:, -1, :BLOCK] @ columns[:BLOCK].flatten(1)).unflatten(1, (-1, features))
    kept = response[:, -1, BLOCK:]
    for before, depth in zip(blocks.previous, blocks.depths()[1:], strict=True):
        ends = torch.addmm(added.index_select(1, before).flatten(1), kept, entering.index_select(1, before).flatten(1))
        entering[:, depth] = ends.unflatten(1, (-1, features))
    return columns


def places(blocks: Blocks) -> Tensor:
    """Where each of the T * B steps lies in a flattened [BLOCK, N]."""
    return blocks.slot * blocks.steps.shape[1] + blocks.block


def last_pools(columns: Tensor, response: Tensor, blocks: Blocks, batch: int) -> Tensor:
    """The pools [batch, k, P] after the last step, from what `block_columns` returns."""
    slot, block = blocks.slot[-batch:], blocks.block[-batch:]
    return torch.bmm(response[:, slot].transpose(0, 1), columns[:, block].transpose(0, 1))
