"""A2C: one update per batch, which is collected with the newest weights (Mnih et al. 2016, "Asynchronous Methods for
Deep Reinforcement Learning", the synchronous form), and generalized and standardized advantages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...base.settings import Settings, setting
from ..returns import Returns, check_shapes, discounted_sum, next_steps, policy_terms, value_terms
from .algorithm import Algorithm, Pass, Targets, Terms


@dataclass(frozen=True, kw_only=True)
class A2CSettings(Settings):
    """Settings of A2C."""

    gae_lambda: float = setting(1.0, (0, 1))
    """Lambda of generalized advantage estimation, 0..1; 1 is the n-step return with bootstrap."""


class A2C(Algorithm):
    """Policy gradient with the advantages of the batch's own policy."""

    Settings = A2CSettings
    settings: A2CSettings
    on_policy = True

    def targets(self, now: Pass) -> Targets:
        return Targets(*generalized_advantages(*now.for_returns(), self.settings.gae_lambda))

    def terms(self, now: Pass, targets: Targets) -> Terms:
        """`- log pi(a_t) A_t` and `0.5 (R_t - V_t)^2`."""
        valid = now.step.valid
        policy = policy_terms(now.log_policy, targets.advantages, valid)
        return Terms(policy, value_terms(now.values, targets.values, valid), ())


def generalized_advantages(
    rewards: Tensor, discounts: Tensor, values: Tensor, bootstrap_value: Tensor, lambda_: float
) -> Returns:
    """Generalized advantage estimation, and its lambda-returns as targets.

        delta_t = r_t + d_t V_{t+1} - V_t;    A_t = delta_t + d_t lambda A_{t+1},  A_T = 0;    R_t = A_t + V_t

    (Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation", equation 16,
    truncated at the end of the unroll.) Lambda, in 0..1: 1 is `n_step_returns`, 0 the one-step return.
    """
    check_shapes(bootstrap_value, rewards=rewards, discounts=discounts, values=values)
    with torch.no_grad():
        deltas = rewards + discounts * next_steps(values, bootstrap_value) - values
        advantages = discounted_sum(deltas, lambda_ * discounts, torch.zeros_like(bootstrap_value))
        return Returns(advantages + values, advantages)


def standardized(
    advantages: Tensor, valid: Tensor, floor: float = 0.0, total: Callable[..., Sequence[Any]] = lambda *x: x
) -> Tensor:
    """Advantages [T, B] with mean 0 and standard deviation 1 over the valid steps (bool [T, B]); 0 elsewhere. They stay
    small if their deviation is below `floor` or only rounding. `total` sums over all learners."""
    mean, count = total(torch.where(valid, advantages, 0.0).sum(), valid.sum())
    mean = mean / count.clamp(min=1)
    (spread,) = total(torch.where(valid, advantages - mean, 0.0).square().sum())
    spread = spread / (count - 1).clamp(min=1)
    deviation = torch.maximum(spread.sqrt().clamp(min=floor), 1e-6 * mean.abs())
    standard = torch.where(valid, (advantages - mean) / torch.where(deviation > 0, deviation, 1.0), 0.0)
    return torch.where(count < 2, advantages, standard)  # a single step has no deviation
