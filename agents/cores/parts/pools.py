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
    """Chain low-pass filters: `p^n_t = a_n p^{n-1}_t + (1 - a_n) p^n_{t-1}`, `p^0_t = x_t`, `a_n = rates[n-1]`
    (Stepleton et al. 2018, section 2): row n of F is a_n times row n-1, plus 1 - a_n in column n; g_n = a_1 ... a_n."""
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
    """Return float64 [k]: standard deviation of every pool after many independent inputs of mean 0 and variance 1. The
    covariance C of the pools solves C = F C F' + g g'."""
    feedback, gain = linear
    size = len(gain)
    system = torch.eye(size**2, dtype=torch.float64) - torch.kron(feedback, feedback)
    covariance = torch.linalg.solve(system, torch.outer(gain, gain).flatten()).view(size, size)
    return covariance.diagonal().sqrt()


def half_lives(linear: LinearFilter) -> list[float]:
    """Return for every pool the steps after which half of its summed response to one input has passed. The sum over n
    steps is (I - F)^-1 (I - F^n) g, interpolated between steps."""
    feedback, gain = linear
    one = torch.eye(len(gain), dtype=torch.float64)
    inverse = torch.linalg.inv(one - feedback)

    def share(pool: int, steps: int) -> float:
        sums = inverse @ (one - torch.linalg.matrix_power(feedback, steps)) @ gain
        return float(sums[pool] / (inverse @ gain)[pool])

    spans: list[float] = []
    for pool in range(len(gain)):
        low, high = 0, 1
        while share(pool, high) < 0.5:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if share(pool, middle) >= 0.5 else (middle, high)
        spans.append(low + (0.5 - share(pool, low)) / (share(pool, high) - share(pool, low)))
    return spans
