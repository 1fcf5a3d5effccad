"""A complete custom algorithm: the plain policy gradient with clipped advantages.

    rl-train --env cued-catch --core gru --algorithm engram.examples.clipped_policy_gradient:ClippedPolicyGradient

An algorithm turns one pass of the network over a batch into targets and loss terms, each [T, B]; resets, masks,
the entropy bonus and the optimizer are the learner's part.
"""

from dataclasses import dataclass
from typing import ClassVar

from engram.learners.algorithms.algorithm import Algorithm, Pass, Targets, Terms
from engram.learners.returns import n_step_returns, policy_terms, value_terms


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of this algorithm."""

    bound: float = 1.0
    """Advantages are clipped to -bound..bound; above 0."""

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
        """Return n-step returns and their clipped advantages."""
        returns = n_step_returns(now.step.rewards, now.step.discounts, now.values, now.bootstrap)
        return Targets(returns.targets, returns.advantages.clamp(-self.settings.bound, self.settings.bound))

    def terms(self, now: Pass, targets: Targets) -> Terms:
        """Return the two losses of every step, and whether its advantage was clipped."""
        valid = now.step.valid
        clipped = (targets.advantages.abs() >= self.settings.bound).float()
        policy = policy_terms(now.log_policy, targets.advantages, valid)
        return Terms(policy, value_terms(now.values, targets.values, valid), (clipped,))
