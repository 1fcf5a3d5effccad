"""PPO: several epochs over each batch, with the ratio of the new policy to the acting one clipped.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms", equation 7, with generalized advantage estimation. A
minibatch is made of whole environments: every pass begins at the unroll's own initial state and resets where episodes
end, so the recurrent states are those of the weights that are being learned.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...base.messages import above, check_fields
from ..returns import generalized_advantages, standardized, value_terms
from .algorithm import Algorithm, Pass, Targets, Terms


@dataclass(frozen=True, kw_only=True)
class PPOSettings:
    """Settings that PPO alone reads."""

    epochs: int = 4
    """Passes over each batch, at least 1."""
    minibatches: int = 4
    """Updates per epoch, at least 1; the batch's environments are shared out among them again in every epoch."""
    clip: float = 0.2
    """The ratio of new to acting policy earns nothing beyond 1 minus or plus this, above 0..1."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation, 0..1."""
    normalize_advantages: bool = True
    """Advantages of a batch are shifted to mean 0 and scaled to standard deviation 1."""
    advantage_floor: float = 0.0
    """Least deviation that they are divided by, at least 0, in units of rewards or with normalized returns of those:
    where nothing has been found yet, advantages are errors of the value function, and to scale them up drives the
    policy anywhere."""

    target_kl: float = 0.0
    """Mean divergence KL(acting || new policy) of an update in nats, at least 0, above which it and the remaining
    updates of its batch are left out; 0 leaves none out. The divergence is exact."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            epochs=(1, None),
            minibatches=(1, None),
            clip=above(0, 1),
            gae_lambda=(0, 1),
            advantage_floor=(0, None),
            target_kl=(0, None),
        )


class PPO(Algorithm):
    """The clipped surrogate objective."""

    Settings = PPOSettings
    settings: PPOSettings
    on_policy = True
    metrics: ClassVar[tuple[str, ...]] = ("ppo/clip_rate",)
    targets_once = True

    @property
    def target_kl(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As `Algorithm.target_kl`."""
        return self.settings.target_kl

    def minibatches(self, num_envs: int, generator: torch.Generator) -> list[Tensor | None]:
        """Every environment once per epoch, in random groups of nearly equal size."""
        groups = min(self.settings.minibatches, num_envs)
        if groups == 1:
            return [None] * self.settings.epochs
        shuffles = (torch.randperm(num_envs, generator=generator) for _ in range(self.settings.epochs))
        return [group for order in shuffles for group in order.tensor_split(groups)]

    def targets(self, now: Pass) -> Targets:
        """Lambda-returns and, standardized over the batch, generalized advantages."""
        step = now.step
        found = generalized_advantages(
            step.rewards, step.discounts, now.values, now.bootstrap, self.settings.gae_lambda
        )
        if not self.settings.normalize_advantages:
            return Targets(found.targets, found.advantages)
        floor = self.settings.advantage_floor
        return Targets(found.targets, standardized(found.advantages, step.valid, floor, now.total))

    def terms(self, now: Pass, targets: Targets) -> Terms:
        """The clipped surrogate, negative, and the squared error of the values.

        r_t = pi(a_t) / mu(a_t);    - min(r_t A_t, clip(r_t, 1 - eps, 1 + eps) A_t);    0.5 (R_t - V_t)^2
        """
        eps = self.settings.clip
        ratio = (now.log_policy - now.log_behavior).exp()
        advantages = torch.where(now.step.valid, targets.advantages, 0.0)
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - eps, 1 + eps) * advantages)
        clipped = ((ratio.detach() - 1).abs() > eps).float()
        return Terms(-surrogate, value_terms(now.values, targets.values, now.step.valid), (clipped,))
