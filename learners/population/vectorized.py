"""Update of several members of a population, each from its own batch, in one batched call if the operations match.

Weights and batches of M members are stacked, and one pass computes M losses; no loss depends on another member's
weights, so the gradient of their sum contains the gradient of each. Each learner applies its own clipping, optimizer
and settings. Results differ from those of `Learner.learn` by the rounding of matrix multiplications.
"""

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ...actors.packed import tensors, with_tensors
from ...actors.unroll import Unroll
from ..algorithms.algorithm import Targets
from ..config import LearnerConfig
from ..learner import Learner
from ..loss import Gradient, LossTerms, Minibatch, gradient, loss, matrix_precision

VARIED = ("discount", "entropy_cost", "value_cost", "auxiliary_cost", "prediction_cost")
"""Factors in the loss; they may differ between the members of one call."""
OWN = (
    *("lr", "lr_schedule", "lr_warmup", "eps", "adam_beta1", "rmsprop_decay", "rmsprop_momentum", "max_grad_norm"),
    "entropy_schedule",
)
"""Settings that a learner uses outside the pass."""


def learn_together(learners: Sequence[Learner], batches: Sequence[Unroll]) -> None:
    """Call `learn` on every learner with its batch, in one batched call where possible."""
    received = [learner.receive(batch) for learner, batch in zip(learners, batches, strict=True)]
    updates = [learner.prepare(batch) for learner, (batch, _) in zip(learners, received, strict=True)]
    chosen = [indices or [slice(None)] for _, indices in received]
    for turn in range(max(map(len, chosen))):
        minibatches = {
            m: learner.minibatch(updates[m], chosen[m][turn])
            for m, learner in enumerate(learners)
            if turn < len(chosen[m]) and not updates[m].stopped
        }
        for members in _alike(minibatches):
            for m, result in zip(members, gradients([minibatches[m] for m in members]), strict=True):
                learners[m].apply(updates[m], minibatches[m], result)
    for learner, batch, update in zip(learners, batches, updates, strict=True):
        learner.count(batch, learner.complete(update))


def _alike(minibatches: dict[int, Minibatch]) -> list[list[int]]:
    """Group members whose gradients one call can compute."""
    may_differ = {name: getattr(LearnerConfig(), name) for name in (*VARIED, *OWN)}
    groups: dict[Any, list[int]] = defaultdict(list)
    for member, minibatch in minibatches.items():
        form = [(leaf.shape, leaf.dtype) for leaf in tensors(minibatch.batch)]
        groups[repr((replace(minibatch.config, **may_differ), form, minibatch.targets is None))].append(member)
    return list(groups.values())


def gradients(minibatches: Sequence[Minibatch]) -> list[Gradient]:
    """Compute `gradient` of every minibatch; all have the same form."""
    if len(minibatches) == 1:
        return [gradient(minibatches[0])]
    losses = [_Loss(minibatch) for minibatch in minibatches]
    weights, moments = stack_module_state(losses)  # pyright: ignore[reportArgumentType]
    leaves = [torch.stack(same) for same in zip(*(tensors(x.batch) for x in minibatches), strict=True)]
    targets = [torch.stack(same) for same in zip(*(x.targets or () for x in minibatches), strict=True)]
    settings = {name: _stack([getattr(x.config, name) for x in minibatches], leaves[0]) for name in VARIED}
    settings["share"] = _stack([x.entropy_share for x in minibatches], leaves[0])

    def one(weights: Any, moments: Any, *inputs: Any) -> LossTerms:
        return functional_call(losses[0], (weights, moments), inputs)

    with matrix_precision(minibatches[0].config.precision, leaves[0].device):
        terms: LossTerms = vmap(one)(weights, moments, leaves, targets, settings)
        summed: Any = torch.autograd.grad(terms.total.sum(), list(weights.values()), allow_unused=True)
    unused: tuple[Tensor | None, ...] = (None,) * len(minibatches)
    by_member = zip(*(unused if x is None else x.unbind() for x in summed), strict=True)
    return [Gradient(*parts) for parts in zip(by_member, terms.metrics, terms.returns, strict=True)]


class _Loss(nn.Module):
    """Loss of a minibatch as a module, so that a call can replace its weights."""

    def __init__(self, minibatch: Minibatch) -> None:
        super().__init__()
        self.agent, self._minibatch = minibatch.agent, minibatch

    def forward(self, leaves: list[Tensor], targets: list[Tensor], settings: dict[str, Tensor]) -> LossTerms:
        config, batch = copy.copy(self._minibatch.config), with_tensors(self._minibatch.batch, leaves)
        for name in VARIED:
            object.__setattr__(config, name, settings[name])  # a tensor, which the configuration cannot check
        fixed, share = Targets(*targets) if targets else None, settings["share"]
        return loss(self._minibatch._replace(batch=batch, config=config, targets=fixed, entropy_share=share))


def _stack(values: Sequence[Any], like: Tensor) -> Tensor:
    return torch.stack([torch.as_tensor(value, dtype=torch.float32) for value in values]).to(like.device)
