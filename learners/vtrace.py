"""V-trace: value targets and advantages for a policy that lags behind the one being learned.

Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
equation 1 in its recursive form (remark 1 there), with the lambda of remark 2. Shapes: T steps, B environments.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .returns import check_shapes, discounted_sum, next_steps


class VTrace(NamedTuple):
    """Value targets and policy-gradient advantages, float [T, B] each, without gradient."""

    vs: Tensor
    pg_advantages: Tensor


def from_importance_weights(
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    clip_rho_threshold: float | None = 1.0,
    clip_pg_rho_threshold: float | None = 1.0,
    trace_lambda: float = 1.0,
) -> VTrace:
    """V-trace targets from the ratios of target to behavior policy.

        rho_t   = exp(log_rho_t) = pi(a_t | x_t) / mu(a_t | x_t)
        delta_t = min(rho_bar, rho_t) (r_t + d_t V_{t+1} - V_t)
        vs_t    = V_t + delta_t + d_t lambda min(1, rho_t) (vs_{t+1} - V_{t+1}),        vs_T = V_T
        adv_t   = min(rho_pg, rho_t) (r_t + d_t vs_{t+1} - V_t)

    Args:
        log_rhos: log importance ratios of the actions taken, float [T, B].
        discounts: discount of the transition from step t to t+1, 0 if it terminates the episode, float [T, B].
        rewards: reward of the transition from step t to t+1, float [T, B].
        values: values of steps 0..T-1 under the current weights, float [T, B].
        bootstrap_value: value of step T, float [B].
        clip_rho_threshold: rho_bar, at least 0; None disables clipping. Sets which policy's value the targets approach.
        clip_pg_rho_threshold: rho_pg, likewise, for the advantages only.
        trace_lambda: lambda, factor on the trace coefficients min(1, rho), in 0..1.

    Raises:
        ValueError: shapes disagree.
    """
    check_shapes(bootstrap_value, log_rhos=log_rhos, discounts=discounts, rewards=rewards, values=values)
    with torch.no_grad():
        rhos = log_rhos.exp()
        deltas = _clip(rhos, clip_rho_threshold) * (rewards + discounts * next_steps(values, bootstrap_value) - values)
        corrections = discounted_sum(
            deltas, trace_lambda * discounts * _clip(rhos, 1.0), torch.zeros_like(bootstrap_value)
        )
        vs = values + corrections
        advantages = rewards + discounts * next_steps(vs, bootstrap_value) - values
        return VTrace(vs, _clip(rhos, clip_pg_rho_threshold) * advantages)


def _clip(rhos: Tensor, threshold: float | None) -> Tensor:
    return rhos if threshold is None else rhos.clamp(max=threshold)
