"""The gradient that an update asks for: a question that a learner answers alone, or several of one form together."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..actors.unroll import Unroll
from ..agents.agent import Agent
from .algorithms.algorithm import Targets
from .config import LearnerConfig
from .passes import LossTerms, batch_loss


class Found(NamedTuple):
    """The answer."""

    gradients: Sequence[Tensor | None]
    """Of the loss, one for each parameter; None for those that it does not depend on."""
    metrics: Tensor
    """As `LossTerms` has them."""
    returns: Tensor
    """As `LossTerms` has them."""


class Gradient(NamedTuple):
    """The question: a pass of the network over a batch, and the gradient of its loss."""

    agent: Agent
    batch: Unroll
    config: LearnerConfig
    targets: Targets | None
    """None: those of this very pass."""
    entropy_share: float | Tensor
    """The schedule's factor on the entropy cost."""

    def loss(self) -> LossTerms:
        """The loss with its gradient."""
        final = (self.batch.env.terminated | self.batch.env.truncated)[:-1]
        share = 1.0 / (~final).sum().clamp(min=1)
        scale = share if self.config.reduction == "mean" else 1.0
        return batch_loss(self.agent, self.batch, self.config, scale, share, self.targets, self.entropy_share)

    def alone(self) -> Found:
        """The answer for this agent."""
        terms = self.loss()
        gradients = torch.autograd.grad(terms.total, list(self.agent.parameters()), allow_unused=True)
        return Found(gradients, terms.metrics, terms.returns)
