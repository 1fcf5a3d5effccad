"""A2C: one update per batch, which is collected with the newest weights (Mnih et al. 2016, "Asynchronous Methods for
Deep Reinforcement Learning", the synchronous form)."""

from dataclasses import dataclass

from ...base.settings import Settings, setting
from ..returns import generalized_advantages, policy_terms, value_terms
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
