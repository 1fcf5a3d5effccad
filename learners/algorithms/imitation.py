"""Imitation of a player."""

from typing import ClassVar

import torch
from torch import Tensor

from ...agents.specs import best, log_probability
from .algorithm import Algorithm, Pass, Targets, Terms


class Imitation(Algorithm):
    """Batches of the algorithm `base`, with the cross entropy with a player's actions as the loss. The player labels
    the student's own states (Ross, Gordon and Bagnell 2011, DAgger, algorithm 3.1 with beta = 0)."""

    metrics: ClassVar[tuple[str, ...]] = ("imitation/agreement",)

    def __init__(self, base: Algorithm) -> None:
        super().__init__(base.settings)
        self._base, self.on_policy = base, base.on_policy

    def minibatches(self, num_envs: int, generator: torch.Generator) -> list[Tensor | None]:
        return self._base.minibatches(num_envs, generator)

    def targets(self, now: Pass) -> Targets:
        return Targets(now.values.detach(), torch.zeros_like(now.bootstrap).expand_as(now.values))

    def terms(self, now: Pass, targets: Targets) -> Terms:
        """`- log pi(a*_t | x_t)` of the player's actions `a*`, and whether the most likely action is the player's."""
        assert now.player is not None
        likelihood = log_probability(now.action_spec, now.log_policies, now.player)
        agrees = best(now.action_spec, now.log_policies.detach()) == now.player
        agrees = agrees if agrees.dim() == 2 else agrees.all(-1)
        policy = -torch.where(now.step.valid, likelihood, 0.0)
        return Terms(policy, torch.zeros_like(now.values), (agrees.to(now.values.dtype),))
