"""Members of a population learn from one batch each in one batched call, if the operations are the same.

Weights and batches of M members are stacked, and one pass computes M losses; none depends on another member's weights,
so the gradient of their sum contains every member's own. Each learner applies its own clipping, optimizer and settings
(learners/learner.py). Results differ from those of `Learner.learn` by the rounding of
matrix multiplications. Launching an operation for nine members takes no longer on a GPU than for one; a CPU,
limited by arithmetic, gains nothing.
"""

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ...actors.unroll import Unroll, tensors, with_tensors
from ..algorithms.algorithm import Targets
from ..config import LearnerConfig
from ..learner import Learner
from ..loss import Gradient, LossTerms, Minibatch, gradient, loss, matrix_precision

VARIED = ("discount", "entropy_cost", "value_cost", "auxiliary_cost", "prediction_cost")
"""Factors of the loss, which may differ between members of one call."""
OWN = (
    *("lr", "lr_schedule", "lr_warmup", "eps", "adam_beta1", "rmsprop_decay", "rmsprop_momentum", "max_grad_norm"),
    "entropy_schedule",
)
"""Settings that a learner uses outside the pass."""


def learn_together(learners: Sequence[Learner], batches: Sequence[Unroll]) -> None:
    """Like `learn` for every learner with its batch."""
    received = [learner.receive(batch) for learner, batch in zip(learners, batches, strict=True)]
    updates = [learner.prepare(batch) for learner, (batch, _) in zip(learners, received, strict=True)]
    chosen = [indices or [slice(None)] for _, indices in received]
    for number in range(max(map(len, chosen))):
        minibatches = {
            m: learner.minibatch(updates[m], chosen[m][number])
            for m, learner in enumerate(learners)
            if number < len(chosen[m]) and not updates[m].stopped
        }
        for members in _alike(minibatches):
            for m, own in zip(members, gradients([minibatches[m] for m in members]), strict=True):
                learners[m].apply(updates[m], minibatches[m], own)
    for learner, batch, own in zip(learners, batches, updates, strict=True):
        learner.count(batch, learner.complete(own))


def _alike(minibatches: dict[int, Minibatch]) -> list[list[int]]:
    """Group members whose gradients one call can compute."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for member, minibatch in minibatches.items():
        form = [(leaf.shape, leaf.dtype) for leaf in tensors(minibatch.batch)]
        groups[repr((_form(minibatch.config), form, minibatch.targets is None))].append(member)
    return list(groups.values())


def _form(config: LearnerConfig) -> LearnerConfig:
    """Return a configuration without the settings in which members of one call may differ."""
    usual = LearnerConfig()
    return replace(config, **{name: getattr(usual, name) for name in (*VARIED, *OWN)})


def gradients(minibatches: Sequence[Minibatch]) -> list[Gradient]:
    """Like `gradient` for every minibatch, all of one form."""
    if len(minibatches) == 1:
        return [gradient(minibatches[0])]
    losses = [_Loss(each) for each in minibatches]
    weights, moments = stack_module_state(losses)  # pyright: ignore[reportArgumentType]
    leaves = [torch.stack(same) for same in zip(*(tensors(each.batch) for each in minibatches), strict=True)]
    targets = [torch.stack(same) for same in zip(*(each.targets or () for each in minibatches), strict=True)]
    settings = {name: _stacked([getattr(each.config, name) for each in minibatches], leaves[0]) for name in VARIED}
    share = _stacked([each.entropy_share for each in minibatches], leaves[0])

    def one(*member: Any) -> LossTerms:
        weights, moments, leaves, targets, settings, share = member
        return functional_call(losses[0], (weights, moments), (leaves, targets, settings, share))

    with matrix_precision(minibatches[0].config.precision, leaves[0].device):
        terms: LossTerms = vmap(one)(weights, moments, leaves, targets, settings, share)
        summed: Any = torch.autograd.grad(terms.total.sum(), list(weights.values()), allow_unused=True)
    unused: tuple[Tensor | None, ...] = (None,) * len(minibatches)
    own = zip(*(unused if each is None else each.unbind() for each in summed), strict=True)
    return [Gradient(*each) for each in zip(own, terms.metrics, terms.returns, strict=True)]


class _Loss(nn.Module):
    """Loss of a minibatch as a module, whose weights can be replaced for a call."""

    def __init__(self, minibatch: Minibatch) -> None:
        super().__init__()
        self.agent, self._minibatch = minibatch.agent, minibatch

    def forward(
        self, leaves: list[Tensor], targets: list[Tensor], settings: dict[str, Tensor], share: Tensor
    ) -> LossTerms:
        """Compute the loss of one member."""
        config, batch = copy.copy(self._minibatch.config), with_tensors(self._minibatch.batch, leaves)
        for name, value in settings.items():
            object.__setattr__(config, name, value)  # a tensor for each member, which the configuration cannot check
        own = Targets(*targets) if targets else None
        return loss(self._minibatch._replace(batch=batch, config=config, targets=own, entropy_share=share))


def _stacked(values: Sequence[Any], like: Tensor) -> Tensor:
    """Stack a value of every member, [M]."""
    return torch.stack([torch.as_tensor(value, dtype=torch.float32) for value in values]).to(like.device)
