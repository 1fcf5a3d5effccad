"""One pass of the network over a batch of unrolls, its loss, and the gradient of the loss."""

import contextlib
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..actors.extras import PLAYER
from ..actors.unroll import Unroll
from ..agents.agent import Agent
from ..agents.cores.fast import bf16
from ..agents.process import round_factors
from ..agents.specs import log_policy, log_probability
from .algorithms.algorithm import Pass, Targets
from .batches import ALONE, BURN_IN, Group, learned_rewards
from .config import LearnerConfig, Precision
from .returns import transitions, valid_sum

TERMS = "policy", "value", "entropy", "auxiliary", "prediction", "total"
METRICS = (*(f"loss/{term}" for term in TERMS), "policy/entropy", "policy/kl_behavior")
"""Metrics of every algorithm, in order. Losses are weighted, as in the total; the rest are means over valid steps.
Metrics of the algorithm (`Algorithm.metrics`) follow."""
KL = METRICS.index("policy/kl_behavior")


class LossTerms(NamedTuple):
    total: Tensor  # Scalar with gradient
    metrics: Tensor  # float [len(METRICS) + len(algorithm.metrics)], without gradient
    returns: Tensor  # The value targets, float [T, B], in the units of the value head


def evaluate(agent: Agent, batch: Unroll, config: LearnerConfig, group: Group = ALONE) -> Pass:
    """Run the network over an unroll [T, B]; rewards and values are in the units of the value head."""
    with _lowered(config.precision, batch.env.reward.device):
        out = agent.unroll(batch.env, batch.agent.action, batch.initial_state, config.bptt_length or None)
    if config.precision == "bf16":
        out = out._replace(logits=out.logits.float(), value=out.value.float(), features=out.features.float())
    spec, action = agent.action_spec, batch.agent.action
    log_policies, log_behaviors = log_policy(spec, out.logits[:-1]), log_policy(spec, batch.agent.logits)
    reward, values, bootstrap = learned_rewards(batch, config), out.value[:-1], out.value[-1].detach()
    if agent.units is not None:
        reward, values, bootstrap = (x / agent.units.unit for x in (reward, values, bootstrap))
    step = transitions(reward, batch.env.terminated, batch.env.truncated, values, config.discount)
    extras: dict[str, Any] = batch.env.extras or {}
    if BURN_IN in extras:
        step = step._replace(valid=step.valid & ~extras[BURN_IN][:-1])
    return Pass(
        step,
        values,
        bootstrap,
        log_probability(spec, log_policies, action),
        log_probability(spec, log_behaviors, action),
        log_policies,
        log_behaviors,
        out.features[:-1],
        spec,
        auxiliary=None if out.auxiliary is None else out.auxiliary[:-1],
        prediction=out.prediction,
        player=extras[PLAYER][:-1] if config.imitate else None,
        total=group.total,
    )


class Minibatch(NamedTuple):
    agent: Agent
    batch: Unroll
    config: LearnerConfig
    targets: Targets | None  # None: targets are computed in this pass
    entropy_share: float | Tensor  # Factor of the schedule on the entropy cost
    group: Group = ALONE  # Learners that share the batch


def loss(minibatch: Minibatch) -> LossTerms:
    """Loss of this share: its part of the mean (or sum, as set by `reduction`) over valid steps of the full batch.

    total = policy + value_cost * value + entropy_cost * (-entropy) + auxiliary_cost * auxiliary
          + prediction_cost * prediction + the algorithm's extra loss

    With `imitate`, the first term is the cross entropy with a player's actions; the next two are absent.
    """
    agent, batch, config, targets, entropy_share, group = minibatch
    now = evaluate(agent, batch, config, group)
    valid = now.step.valid
    if targets is None:
        tensors = {name: x.detach() for name, x in now._asdict().items() if isinstance(x, Tensor)}
        targets = config.method.targets(now._replace(**tensors))
    terms = config.method.terms(now, targets)
    entropy = now.entropy()
    auxiliary, prediction = (torch.zeros_like(entropy) if x is None else x for x in (now.auxiliary, now.prediction))
    (count,) = group.total(valid.sum())
    share = 1.0 / count.clamp(min=1)
    scale = share if config.reduction == "mean" else 1.0
    parts = [
        valid_sum(terms.policy, valid),
        config.value_cost * valid_sum(terms.value, valid),
        entropy_share * (0.0 if config.imitate else config.entropy_cost) * valid_sum(-entropy, valid),
        config.auxiliary_cost * valid_sum(auxiliary, valid),
        config.prediction_cost * valid_sum(prediction, valid),
    ]
    total = scale * (parts[0] + parts[1] + parts[2] + parts[3] + parts[4])
    if terms.extra is not None:
        total = total + scale * valid_sum(terms.extra, valid)
    with torch.no_grad():
        means = [share * valid_sum(x, valid) for x in (entropy, now.kl(), *terms.metrics)]
        metrics = torch.stack([*(scale * part for part in parts), total, *means])
    return LossTerms(total, metrics.detach(), targets.values)


class Gradient(NamedTuple):
    gradients: Sequence[Tensor | None]  # One per parameter; None if the loss does not depend on it
    metrics: Tensor  # As in `LossTerms`
    returns: Tensor  # As in `LossTerms`


def gradient(minibatch: Minibatch) -> Gradient:
    """Compute the gradient of `loss` with respect to the agent's parameters."""
    with matrix_precision(minibatch.config.precision, minibatch.batch.env.reward.device):
        terms = loss(minibatch)
        gradients = torch.autograd.grad(terms.total, list(minibatch.agent.parameters()), allow_unused=True)
    return Gradient(gradients, terms.metrics, terms.returns)


@contextlib.contextmanager
def matrix_precision(precision: Precision, device: torch.device) -> Generator[None]:
    """With tf32, round the factors of a GPU's matrix multiplications and convolutions to 10-bit mantissas. Compute
    gradients inside the context: the backward pass also reads these process-wide flags."""
    restore = (lambda: None) if device.type == "cpu" else round_factors(precision == "tf32")
    try:
        yield
    finally:
        restore()


def _lowered(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Context of a forward pass: with bf16, large multiplications on a CPU round their factors; on a GPU, torso and
    heads use bfloat16, and cores use float32 (`in_full_precision`)."""
    if precision != "bf16":
        return contextlib.nullcontext()
    return bf16.products() if device.type == "cpu" else torch.autocast(device.type, torch.bfloat16)
