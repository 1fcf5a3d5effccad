"""Imitation: the batches of another algorithm, and the cross entropy with a player's actions as their only loss.

The states are the student's own, labeled by the player (Ross, Gordon and Bagnell 2011, "A reduction of imitation
learning and structured prediction to no-regret online learning", algorithm 3.1 with beta = 0).
"""

from typing import ClassVar

import torch
from torch import Tensor

from .algorithm import Algorithm, Pass, Targets, Terms


class Imitation(Algorithm):
    """A diagnosis of a network: whether it can contain the player's behavior.

    Args:
        base: the algorithm whose minibatches and synchrony are used.
    """

    metrics: ClassVar[tuple[str, ...]] = ("imitation/agreement",)

    def __init__(self, base: Algorithm) -> None:
        super().__init__(base.settings)
        self._base = base

    @property
    def on_policy(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the base algorithm's."""
        return self._base.on_policy

    def minibatches(self, num_envs: int, generator: torch.Generator) -> list[Tensor | None]:
        """Those of the base algorithm."""
        return self._base.minibatches(num_envs, generator)

    def targets(self, now: Pass) -> Targets:
        """The values themselves: nothing is learned from rewards."""
        return Targets(now.values.detach(), torch.zeros_like(now.bootstrap).expand_as(now.values))

    def terms(self, now: Pass, targets: Targets) -> Terms:
        """`- log pi(a*_t | x_t)` of the player's actions `a*`, and how often the likeliest action is the player's."""
        assert now.player is not None
        likelihood = torch.where(now.step.valid, now.player.log_policy, 0.0)
        return Terms(-likelihood, torch.zeros_like(now.values), (now.player.agrees,))
