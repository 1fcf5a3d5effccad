"""V-trace (IMPALA): one update per batch, corrected for the lag of the behavior policy (Espeholt et al. 2018, section
4); the targets are in ../returns.py."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...base.settings import Settings, setting
from ..returns import from_importance_weights, policy_terms, value_terms
from .algorithm import Algorithm, Pass, Targets, Terms


@dataclass(frozen=True, kw_only=True)
class VTraceSettings(Settings):
    """Settings of V-trace."""

    clip_rho: float = setting(1.0, (0, None))
    """Clip of importance ratios in the value targets (rho bar); 0 does not clip."""
    clip_pg_rho: float = setting(1.0, (0, None))
    """Clip of importance ratios in the policy gradient; 0 does not clip."""
    trace_lambda: float = setting(1.0, (0, 1))
    """Factor on the trace coefficients c, 0..1: below 1, later errors count less and returns vary less."""
    policy_clip: float = setting(0.0, (0, None))
    """Steps whose ratio has moved farther than this in the advantage's direction have no policy gradient; 0 is off."""
    epochs: int = setting(1, (1, None))
    """Passes over each batch, at least 1, each with its own targets."""


class VTrace(Algorithm):
    """Policy gradient with V-trace advantages, and regression of values on V-trace targets."""

    Settings = VTraceSettings
    settings: VTraceSettings
    on_policy = False
    metrics: ClassVar[tuple[str, ...]] = ("vtrace/rho_mean", "vtrace/rho_clip_rate")

    def minibatches(self, num_envs: int, generator: torch.Generator) -> list[Tensor | None]:
        del num_envs, generator
        return [None] * self.settings.epochs

    def targets(self, now: Pass) -> Targets:
        step, settings = now.step, self.settings
        log_rhos, clips = now.log_policy - now.log_behavior, (settings.clip_rho or None, settings.clip_pg_rho or None)
        inputs = log_rhos, step.discounts, step.rewards, now.values, now.bootstrap
        return Targets(*from_importance_weights(*inputs, *clips, settings.trace_lambda))

    def terms(self, now: Pass, targets: Targets) -> Terms:
        """`- log pi(a_t) adv_t` and `0.5 (vs_t - V_t)^2`, with the ratio and whether it is clipped as metrics. With a
        `policy_clip` eps, the first is 0 where sign(adv_t) (rho_t - 1) > eps: a batch from older weights then does
        not repeat changes made by later updates (as in PPO's clipping, Schulman et al. 2017)."""
        rhos = (now.log_policy.detach() - now.log_behavior).exp()
        clipped = (rhos > (self.settings.clip_rho or torch.inf)).float()
        advantages = targets.advantages
        if self.settings.policy_clip:
            advantages = torch.where(advantages.sign() * (rhos - 1) > self.settings.policy_clip, 0.0, advantages)
        policy = policy_terms(now.log_policy, advantages, now.step.valid)
        return Terms(policy, value_terms(now.values, targets.values, now.step.valid), (rhos, clipped))
