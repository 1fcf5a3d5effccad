"""Formulas between an unroll and its loss: transitions, returns and advantages, and loss terms.

Step t is the environment's output before action t. Under NEXT_STEP autoreset the last step of an episode shows its
final observation with `terminated` or `truncated` set; the action there is ignored, and step t+1 begins a new episode:

    step             t-1        t          t+1        t+2
    observation      s_5        s_6        s'_0       s'_1          s_6 ends the episode
    terminated       0          1          0          0
    transition       t-1 -> t   t -> t+1   t+1 -> t+2
    valid            yes        no (dead)  yes

Index t runs over the T transitions: `rewards[t]` and `discounts[t]` belong to the one from step t to step t+1,
`values[t]` to step t, `bootstrap_value` [B] to step T; all others are float [T, B]. Returns carry no gradient. Masking
is by selection, not by multiplication (0 * nan is nan), and precedes every multiplication that has a gradient.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Transitions(NamedTuple):
    """The steps t -> t+1 of an unroll, [T, B] each; rewards and discounts are floats, valid is bool."""

    rewards: Tensor
    discounts: Tensor
    valid: Tensor


def transitions(reward: Tensor, terminated: Tensor, truncated: Tensor, values: Tensor, discount: float) -> Transitions:
    """Rewards, discounts and the mask of valid transitions, from each step's reward and flags [T+1, B] and the values
    [T, B], which get no gradient; `discount` is gamma per step.

    A transition into a terminated step has discount 0. One into a truncated step keeps its discount: the episode
    bootstraps from the value of its own final observation. The ignored transition from a final step t gets

        d_t = 0,  r_t = V_t    so that    delta_t = r_t + d_t V_{t+1} - V_t = 0    and every return at t is V_t itself,

    which passes exactly V_t to the previous step and nothing of the next episode. Returns, advantages and
    V-trace therefore need no special case; `valid` excludes the dead steps from losses and counts.
    """
    final = terminated | truncated
    valid = ~final[:-1]
    rewards = torch.where(valid, reward[1:], values.detach())
    discounts = discount * (valid & ~terminated[1:]).to(values.dtype)
    return Transitions(rewards, discounts, valid)


class Returns(NamedTuple):
    """Targets for the value function and advantages for the policy, float [T, B] each."""

    targets: Tensor
    advantages: Tensor


def discounted_sum(terms: Tensor, discounts: Tensor, last: Tensor) -> Tensor:
    """y_t = terms_t + discounts_t * y_{t+1} with y_T = last: [T, B], [T, B], [B] -> [T, B]. The backward loop over time
    that all returns and V-trace use."""
    following, sums = last, list[Tensor]()
    for term, discount in zip(reversed(terms.unbind()), reversed(discounts.unbind()), strict=True):
        following = torch.addcmul(term, discount, following)
        sums.append(following)
    return torch.stack(sums[::-1])


def n_step_returns(rewards: Tensor, discounts: Tensor, values: Tensor, bootstrap_value: Tensor) -> Returns:
    """Compute returns bootstrapped from the value of step T, as in A3C; 0 gives returns without bootstrap.

        R_t = r_t + d_t R_{t+1},  R_T = V_T;    A_t = R_t - V_t

    so step T-k has a k-step return (Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning",
    algorithm S3).
    """
    check_shapes(bootstrap_value, rewards=rewards, discounts=discounts, values=values)
    with torch.no_grad():
        targets = discounted_sum(rewards, discounts, bootstrap_value)
        return Returns(targets, targets - values)


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
    """V-trace: value targets and advantages for a policy that lags behind the one being learned.

        rho_t   = exp(log_rho_t) = pi(a_t | x_t) / mu(a_t | x_t)
        delta_t = min(rho_bar, rho_t) (r_t + d_t V_{t+1} - V_t)
        vs_t    = V_t + delta_t + d_t lambda min(1, rho_t) (vs_{t+1} - V_{t+1}),        vs_T = V_T
        adv_t   = min(rho_pg, rho_t) (r_t + d_t vs_{t+1} - V_t)

    (Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
    equation 1 in its recursive form (remark 1 there), with the lambda of remark 2.)

    Args:
        log_rhos: log importance ratios of the actions taken, float [T, B].
        discounts, rewards: of the transitions from step t to t+1, float [T, B]; discount 0 terminates the episode.
        values, bootstrap_value: under the current weights, of steps 0..T-1, float [T, B], and of step T, float [B].
        clip_rho_threshold: rho_bar, at least 0; None disables clipping. Sets which policy's value the targets approach.
        clip_pg_rho_threshold: rho_pg, likewise, for the advantages only.
        trace_lambda: lambda, factor on the trace coefficients min(1, rho), in 0..1.

    Raises ValueError if shapes disagree.
    """
    check_shapes(bootstrap_value, log_rhos=log_rhos, discounts=discounts, rewards=rewards, values=values)
    with torch.no_grad():
        rhos = log_rhos.exp()
        deltas = _clip(rhos, clip_rho_threshold) * (rewards + discounts * next_steps(values, bootstrap_value) - values)
        traces = trace_lambda * discounts * _clip(rhos, 1.0)
        vs = values + discounted_sum(deltas, traces, torch.zeros_like(bootstrap_value))
        advantages = rewards + discounts * next_steps(vs, bootstrap_value) - values
        return VTrace(vs, _clip(rhos, clip_pg_rho_threshold) * advantages)


def _clip(rhos: Tensor, threshold: float | None) -> Tensor:
    return rhos if threshold is None else rhos.clamp(max=threshold)


def next_steps(steps: Tensor, last: Tensor) -> Tensor:
    """Shift values [T, B] by one step, with `last` [B], the values after the last step, at the end: [T, B]."""
    return torch.cat([steps[1:], last.unsqueeze(0)])


def check_shapes(bootstrap_value: Tensor, **per_step: Tensor) -> None:
    """Raise ValueError unless all `per_step` are [T, B] for one T >= 1 and the bootstrap is [B]: [T, B, 1] and [T, B]
    could broadcast to all pairs of environments."""
    shapes = {name: tuple(tensor.shape) for name, tensor in (per_step | {"bootstrap_value": bootstrap_value}).items()}
    first_name, first = next(iter(shapes.items()))
    if len(first) != 2 or first[0] == 0:
        raise ValueError(f"{first_name} has shape {first}; expected [T, B] with at least one step")
    for name, shape in shapes.items():
        expected = first if name in per_step else first[1:]
        if shape != expected:
            raise ValueError(f"{name} has shape {shape}; expected {expected}, as {first_name} has shape {first}")


def policy_terms(log_probabilities: Tensor, advantages: Tensor, valid: Tensor) -> Tensor:
    """`- log pi(a_t | x_t) A_t` [T, B]: its gradient is the policy gradient (Williams 1992; IMPALA section 4.2).
    Advantages are constants and may have any value where `valid` (bool [T, B]) is not set."""
    return -log_probabilities * torch.where(valid, advantages.detach(), 0.0)


def value_terms(values: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """0.5 (v_t - V_t)^2 [T, B] (IMPALA section 4.2; the factor 0.5 is from scalable_agent). Targets are constants;
    both may have any value where `valid` (bool [T, B]) is not set."""
    return 0.5 * torch.where(valid, targets.detach() - values, 0.0).square()


def valid_sum(terms: Tensor, valid: Tensor) -> Tensor:
    """Sum of terms where `valid` is set, [T, B] both. Raises ValueError if the shapes differ and could broadcast."""
    if terms.shape != valid.shape:
        raise ValueError(f"terms have shape {tuple(terms.shape)}; expected {tuple(valid.shape)}, the shape of valid")
    return torch.where(valid, terms, 0.0).sum()
