"""A complete custom algorithm: the plain policy gradient with clipped advantages.

    rl-train --env cued-catch --core gru --algorithm engram.examples.clipped_policy_gradient:ClippedPolicyGradient

An algorithm turns one pass of the network over a batch into targets and loss terms, [T, B] each; resets, masks,
the entropy bonus and the optimizer belong to the learner.
"""

from dataclasses import dataclass
from typing import ClassVar

from engram.learners.algorithms.algorithm import Algorithm, Pass, Targets, Terms
from engram.learners.returns import n_step_returns, policy_terms, value_terms


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings specific to this algorithm."""

    bound: float = 1.0
    """Advantages are clipped to plus or minus this, above 0."""

    def __post_init__(self) -> None:
        if not self.bound > 0:
            raise ValueError(f"bound is {self.bound}; allowed: above 0")


class ClippedPolicyGradient(Algorithm):
    """`- log pi(a_t) clip(A_t)` with n-step returns as value targets."""

    Settings = Settings
    settings: Settings
    on_policy = True
    metrics: ClassVar[tuple[str, ...]] = ("bounded/clip_rate",)

    def targets(self, now: Pass) -> Targets:
        """n-step returns, and their advantages clipped."""
        found = n_step_returns(now.step.rewards, now.step.discounts, now.values, now.bootstrap)
        return Targets(found.targets, found.advantages.clamp(-self.settings.bound, self.settings.bound))

    def terms(self, now: Pass, targets: Targets) -> Terms:
        """The two losses of every step, and how often an advantage was clipped."""
        valid = now.step.valid
        clipped = (targets.advantages.abs() >= self.settings.bound).float()
        policy = policy_terms(now.log_policy, targets.advantages, valid)
        return Terms(policy, value_terms(now.values, targets.values, valid), (clipped,))
