"""PPO: several epochs over each batch, with a clipped ratio of new to behavior policy.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms", equation 7, with generalized advantage estimation. A
minibatch consists of complete unrolls: every pass begins at the unroll's initial state and resets where episodes
end, so recurrent states are computed with the weights being learned.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...base.errors import above
from ...base.settings import Settings, setting
from ..returns import value_terms
from .a2c import generalized_advantages, standardized
from .algorithm import Algorithm, Pass, Targets, Terms


@dataclass(frozen=True, kw_only=True)
class PPOSettings(Settings):
    """Settings of PPO."""

    epochs: int = setting(4, (1, None))
    """Passes over each batch, at least 1."""
    minibatches: int = setting(4, (1, None))
    """Updates per epoch, at least 1; the batch's environments are shuffled among them in every epoch."""
    clip: float = setting(0.2, above(0, 1))
    """The ratio of new to behavior policy is clipped to 1 plus or minus this value, above 0, at most 1."""
    gae_lambda: float = setting(0.95, (0, 1))
    """Lambda of generalized advantage estimation, 0..1."""
    normalize_advantages: bool = True
    """Whether the advantages of each batch are shifted to mean 0 and scaled to standard deviation 1."""
    advantage_floor: float = setting(0.0, (0, None))
    """Smallest standard deviation to divide by, at least 0, in units of rewards or of normalized returns:
    before the first reward, advantages are only errors of the value function, and scaling them up moves the
    policy in random directions."""

    target_kl: float = setting(0.0, (0, None))
    """Mean divergence KL(behavior || new policy) in nats, at least 0, above which an update and the remaining updates
    of its batch are skipped; 0 disables this limit. The divergence is exact."""


class PPO(Algorithm):
    """The clipped surrogate objective."""

    Settings = PPOSettings
    settings: PPOSettings
    on_policy = True
    metrics: ClassVar[tuple[str, ...]] = ("ppo/clip_rate",)
    targets_once = True

    def __init__(self, settings: PPOSettings) -> None:
        super().__init__(settings)
        self.target_kl = settings.target_kl

    def minibatches(self, num_envs: int, generator: torch.Generator) -> list[Tensor | None]:
        groups = min(self.settings.minibatches, num_envs)
        if groups == 1:
            return [None] * self.settings.epochs
        shuffles = (torch.randperm(num_envs, generator=generator) for _ in range(self.settings.epochs))
        return [group for order in shuffles for group in order.tensor_split(groups)]

    def targets(self, now: Pass) -> Targets:
        values, advantages = generalized_advantages(*now.for_returns(), self.settings.gae_lambda)
        if self.settings.normalize_advantages:
            advantages = standardized(advantages, now.step.valid, self.settings.advantage_floor, now.total)
        return Targets(values, advantages)

    def terms(self, now: Pass, targets: Targets) -> Terms:
        """r_t = pi(a_t) / mu(a_t);    - min(r_t A_t, clip(r_t, 1 - eps, 1 + eps) A_t);    0.5 (R_t - V_t)^2"""
        eps = self.settings.clip
        ratio = (now.log_policy - now.log_behavior).exp()
        advantages = torch.where(now.step.valid, targets.advantages, 0.0)
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - eps, 1 + eps) * advantages)
        clipped = ((ratio.detach() - 1).abs() > eps).float()
        return Terms(-surrogate, value_terms(now.values, targets.values, now.step.valid), (clipped,))
