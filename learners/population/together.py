"""Members of a population learn from a batch each in one batched call, where the same is done for all of them.

Weights and batches of M members are laid side by side, and one pass computes M losses; none depends on another member's
weights, so the gradient of their sum holds every member's own. Everything else of an update, its clipping, optimizer
and settings, is each learner's (learners/learner.py). Numbers differ from those of a member alone by the rounding of
products. Starting an operation for nine members takes a device no longer than for one; a CPU, which is busy with
the arithmetic of one, gains nothing.
"""

import copy
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ...actors.unroll import Unroll, tensors, with_tensors
from ..algorithms.algorithm import Targets
from ..config import LearnerConfig
from ..device.precision import matrix_precision
from ..learner import Learner
from ..passes import Found, Gradient, LossTerms

VARIED = ("discount", "entropy_cost", "value_cost", "auxiliary_cost", "prediction_cost")
"""Factors of the loss, which may differ between members of one call."""
OWN = (
    *("lr", "lr_schedule", "lr_warmup", "eps", "adam_beta1", "rmsprop_decay", "rmsprop_momentum", "max_grad_norm"),
    "entropy_schedule",
)
"""Settings that a learner uses outside of the pass."""


def learn_together(learners: Sequence[Learner], batches: Sequence[Unroll]) -> None:
    """As `learn` of every learner with its batch."""
    received = [learner.receive(batch) for learner, batch in zip(learners, batches, strict=True)]
    updates = _answer([learner.learning(*each) for learner, each in zip(learners, received, strict=True)])
    for learner, batch, done in zip(learners, batches, updates, strict=True):
        learner.count(batch, done)


def _answer(asking: list[Generator[Gradient, Found, Tensor]]) -> list[Tensor]:
    """Run the generators in step and return their results; questions of one form are answered in one call."""
    done: dict[int, Tensor] = {}
    answers: dict[int, Found | None] = dict.fromkeys(range(len(asking)))
    while answers:
        asked: dict[int, Gradient] = {}
        for number, answer in answers.items():
            try:
                asked[number] = next(asking[number]) if answer is None else asking[number].send(answer)
            except StopIteration as end:
                done[number] = end.value
        answers = {}
        for numbers in _alike(asked):
            answers |= zip(numbers, gradients([asked[number] for number in numbers]), strict=True)
    return [done[number] for number in range(len(asking))]


def _alike(asked: dict[int, Gradient]) -> list[list[int]]:
    """Questions in groups that one call can answer."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for number, each in asked.items():
        form = [(leaf.shape, leaf.dtype) for leaf in tensors(each.batch)]
        groups[repr((_form(each.config), form, each.targets is None))].append(number)
    return list(groups.values())


def _form(config: LearnerConfig) -> LearnerConfig:
    """A configuration without the settings in which members of one call may differ."""
    usual = LearnerConfig()
    return replace(config, **{name: getattr(usual, name) for name in (*VARIED, *OWN)})


def gradients(asked: Sequence[Gradient]) -> list[Found]:
    """The answers to questions of one form."""
    if len(asked) == 1:
        return [asked[0].alone()]
    passes = [_Pass(each) for each in asked]
    weights, moments = stack_module_state(passes)  # pyright: ignore[reportArgumentType]
    leaves = [torch.stack(same) for same in zip(*(tensors(each.batch) for each in asked), strict=True)]
    targets = [torch.stack(same) for same in zip(*(each.targets or () for each in asked), strict=True)]
    numbers = {name: _numbers([getattr(each.config, name) for each in asked], leaves[0]) for name in VARIED}
    share = _numbers([each.entropy_share for each in asked], leaves[0])

    def one(*member: Any) -> LossTerms:
        weights, moments, leaves, targets, numbers, share = member
        return functional_call(passes[0], (weights, moments), (leaves, targets, numbers, share))

    with matrix_precision(asked[0].config.precision, leaves[0].device):
        terms: LossTerms = vmap(one)(weights, moments, leaves, targets, numbers, share)
        found = torch.autograd.grad(terms.total.sum(), list(weights.values()), allow_unused=True)
    unused: tuple[Tensor | None, ...] = (None,) * len(asked)
    given: Any = found  # pyright thinks that every parameter has a gradient
    own = zip(*(unused if each is None else each.unbind() for each in given), strict=True)
    return [Found(*each) for each in zip(own, terms.metrics, terms.returns, strict=True)]


class _Pass(nn.Module):
    """A question as a module, whose weights can be exchanged for a call."""

    def __init__(self, asked: Gradient) -> None:
        super().__init__()
        self.agent, self._asked = asked.agent, asked

    def forward(
        self, leaves: list[Tensor], targets: list[Tensor], numbers: dict[str, Tensor], share: Tensor
    ) -> LossTerms:
        """The loss of one member, whatever its number."""
        config, batch = copy.copy(self._asked.config), with_tensors(self._asked.batch, leaves)
        for name, number in numbers.items():
            object.__setattr__(config, name, number)  # a number for each member, which the configuration cannot check
        own = Targets(*targets) if targets else None
        return self._asked._replace(batch=batch, config=config, targets=own, entropy_share=share).loss()


def _numbers(numbers: Sequence[Any], like: Tensor) -> Tensor:
    """A number of every member, [M]."""
    return torch.stack([torch.as_tensor(number, dtype=torch.float32) for number in numbers]).to(like.device)
