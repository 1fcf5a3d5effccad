"""Linear filters p_t = F p_{t-1} + g x_t with k pools (F [k, k], g [k]), one filter per feature."""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class LinearFilter(NamedTuple):
    """p_t = feedback p_{t-1} + gain x_t, float64."""

    feedback: Tensor  # F [k, k]
    gain: Tensor  # g [k]


def chained(rates: list[float]) -> LinearFilter:
    """Low-pass filters in a row: `p^n_t = a_n p^{n-1}_t + (1 - a_n) p^n_{t-1}`, `p^0_t = x_t`, `a_n = rates[n-1]`. Row
    n of F is a_n times row n-1 plus 1 - a_n at n; g_n = a_1 ... a_n (Stepleton et al. 2018, section 2; App. G
    multiplies the pools from the right, and has 1 - 1/b for the newest input's 1/b)."""
    size = len(rates)
    feedback, gain = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    for n, rate in enumerate(rates):
        if n > 0:
            feedback[n] = rate * feedback[n - 1]
        feedback[n, n] += 1 - rate
        gain[n] = math.prod(rates[: n + 1])
    return LinearFilter(feedback, gain)


def parallel(rates: list[float]) -> LinearFilter:
    """Low-pass filters in parallel: p^n_t = a_n x_t + (1 - a_n) p^n_{t-1} (Stepleton et al. 2018, figure 1b)."""
    rate = torch.tensor(rates, dtype=torch.float64)
    return LinearFilter(torch.diag(1 - rate), rate)


def deviations(linear: LinearFilter) -> Tensor:
    """float64 [k]: standard deviation of every pool after many inputs that are independent, of mean 0 and variance 1.
    Their covariance C solves C = F C F' + g g'."""
    feedback, gain = linear
    size = len(gain)
    system = torch.eye(size**2, dtype=torch.float64) - torch.kron(feedback, feedback)
    covariance = torch.linalg.solve(system, torch.outer(gain, gain).flatten()).view(size, size)
    return covariance.diagonal().sqrt()


def half_lives(linear: LinearFilter) -> list[float]:
    """Of every pool: steps after which half of the sum of its response to one input has passed. That sum over n steps
    is (I - F)^-1 (I - F^n) g; between two steps it is interpolated."""
    feedback, gain = linear
    one = torch.eye(len(gain), dtype=torch.float64)
    inverse = torch.linalg.inv(one - feedback)

    def passed(pool: int, steps: int) -> float:
        done = inverse @ (one - torch.linalg.matrix_power(feedback, steps)) @ gain
        return float(done[pool] / (inverse @ gain)[pool])

    spans: list[float] = []
    for pool in range(len(gain)):
        low, high = 0, 1
        while passed(pool, high) < 0.5:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if passed(pool, middle) >= 0.5 else (middle, high)
        spans.append(low + (0.5 - passed(pool, low)) / (passed(pool, high) - passed(pool, low)))
    return spans
