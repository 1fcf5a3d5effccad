"""V-trace (IMPALA): one update per batch, corrected for the lag of the policy that acted.

Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
section 4; the targets are in ../vtrace.py.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ...base.messages import check_fields
from ..losses import policy_terms, value_terms
from ..vtrace import from_importance_weights
from .algorithm import Algorithm, Pass, Targets, Terms


@dataclass(frozen=True, kw_only=True)
class VTraceSettings:
    """Settings that V-trace alone reads."""

    clip_rho: float = 1.0
    """Clip of importance ratios in the value targets (rho bar); 0 does not clip."""
    clip_pg_rho: float = 1.0
    """Clip of importance ratios in the policy gradient; 0 does not clip."""
    trace_lambda: float = 1.0
    """Factor on the trace coefficients c, 0..1: below 1, later errors count less and returns vary less."""

    def __post_init__(self) -> None:
        check_fields(self, clip_rho=(0, None), clip_pg_rho=(0, None), trace_lambda=(0, 1))


class VTrace(Algorithm):
    """Policy gradient with V-trace's advantages, values regressed on its targets."""

    Settings = VTraceSettings
    settings: VTraceSettings
    on_policy = False
    metrics: ClassVar[tuple[str, ...]] = ("vtrace/rho_mean", "vtrace/rho_clip_rate")

    def targets(self, now: Pass) -> Targets:
        """V-trace's targets and clipped advantages."""
        settings = self.settings
        found = from_importance_weights(
            now.log_policy - now.log_behaviour,
            now.step.discounts,
            now.step.rewards,
            now.values,
            now.bootstrap,
            settings.clip_rho or None,
            settings.clip_pg_rho or None,
            settings.trace_lambda,
        )
        return Targets(found.vs, found.pg_advantages)

    def terms(self, now: Pass, targets: Targets) -> Terms:
        """- log pi(a_t) adv_t and 0.5 (vs_t - V_t)^2; the ratio's mean and how often it is clipped."""
        rhos = (now.log_policy.detach() - now.log_behaviour).exp()
        clipped = (rhos > (self.settings.clip_rho or torch.inf)).float()
        return Terms(
            policy_terms(now.log_policy, targets.advantages, now.step.valid),
            value_terms(now.values, targets.values, now.step.valid),
            (rhos, clipped),
        )
