"""The learner: updates of the agent from one batch of unrolls, by whichever algorithm is configured."""

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..actors.unroll import Unroll, environments, to_device
from ..agents.agent import Agent
from ..agents.specs import entropy as entropy_of
from ..agents.specs import kl_divergence, log_policy, log_probability
from ..agents.unrolling.compiled import compile_steps
from . import losses
from .algorithms.algorithm import Pass, Targets
from .boundaries import transitions
from .config import LearnerConfig
from .optimisers import clip_global_norm, make_optimiser, set_hyperparameters
from .schedules import scheduled

METRICS = (
    "loss/policy",
    "loss/value",
    "loss/entropy",
    "loss/auxiliary",
    "loss/total",
    "policy/entropy",
    "policy/kl_behaviour",
)
"""The metrics of every algorithm, in order. Losses are weighted, as in the total; the rest are means over valid steps.
Those of the algorithm (`Algorithm.metrics`) follow."""


_IN_OPTIMISER = {"eps": "eps", "rmsprop_decay": "decay", "rmsprop_momentum": "momentum"}
"""Settings that the optimiser holds, by its own names; besides them the learning rate and Adam's betas."""

ADAM_BETA2 = 0.999
"""Adam's decay of squared gradients."""


class LossTerms(NamedTuple):
    """The loss of a batch."""

    total: Tensor
    """Scalar with gradient."""
    metrics: Tensor
    """float [len(METRICS) + len(algorithm.metrics)], without gradient."""
    returns: Tensor
    """The value targets of the valid steps, float [N], in units of the rewards."""


class Evaluation(NamedTuple):
    """One pass of the network over a batch: what the algorithm sees of it, and what is the learner's own."""

    now: Pass
    log_policies: Tensor
    """Log-probabilities of every action, [T, B, ...], with gradient."""
    log_behaviours: Tensor
    """Those of the policy that acted, [T, B, ...]."""
    auxiliary: Tensor | None
    """The core's own loss [T, B], or None."""


class Learner:
    """Holds an agent and its optimiser; `step` learns from one batch.

    Args:
        agent: the network, on the device it shall learn on.
        config: the algorithm and its coefficients.
        total_steps: environment steps after which a linear learning rate is zero.
    """

    def __init__(self, agent: Agent, config: LearnerConfig, total_steps: int) -> None:
        self.agent, self.config, self.total_steps = agent, config, total_steps
        self.device = agent.policy.weight.device
        self.optimiser = make_optimiser(
            config.optimiser,
            agent.parameters(),
            lr=config.lr,
            eps=config.eps,
            decay=config.rmsprop_decay,
            momentum=config.rmsprop_momentum,
            betas=(config.adam_beta1, ADAM_BETA2),
        )
        self.updates = 0
        """Batches learnt from; each makes a new version of the weights."""
        self.steps = 0
        """Environment steps consumed."""
        self.skipped = 0
        """Updates left out because the loss or its gradient was not finite."""
        if config.compile:
            compile_steps(agent.core)
        self._use_config()

    def step(self, batch: Unroll) -> dict[str, float]:
        """Learn from a batch [T, B]: the metrics of METRICS, of the algorithm and `learner/…`; counts its steps."""
        batch = to_device(batch, self.device)
        lr = self._use_config()
        names = (*METRICS, *self.config.method.metrics, "learner/grad_norm")
        values = _means(self._learn(batch))
        self.agent.observe(batch.env.observation)
        self.updates += 1
        self.steps += _valid_steps(batch)
        return dict(zip(names, values, strict=True)) | {
            "learner/lr": lr,
            "learner/skipped": float(self.skipped),
        }

    def _learn(self, batch: Unroll) -> list[list[float]]:
        """All updates that the algorithm makes from one batch; the metrics and the gradient's norm of each."""
        # The order of minibatches is a function of the counters, so that a resumed run draws the same ones.
        generator = torch.Generator().manual_seed(self.updates)
        targets = None
        if self.config.method.targets_once or self.agent.value.unused:
            targets = self._fixed_targets(batch)
            if not self.config.method.targets_once:
                targets = None
        done: list[list[float]] = []
        for chosen in self.config.method.minibatches(batch.env.reward.shape[1], generator):
            if chosen is None:
                done.append(self._update(batch, targets))
            else:
                chosen = chosen.to(self.device)
                theirs = None if targets is None else Targets(*(x[:, chosen] for x in targets))
                done.append(self._update(environments(batch, chosen), theirs))
        return done

    def _fixed_targets(self, batch: Unroll) -> Targets:
        """Targets of the weights as they are, in units of the returns that they have with this batch counted in."""
        with torch.no_grad():
            now = evaluate(self.agent, batch, self.config).now
            targets = self.config.method.targets(now)
            if self.agent.value.moments is None:
                return targets
            before = self.agent.value.unit
            self.agent.value.renormalise(targets.values[now.step.valid] * before)
            return self.config.method.targets(rescaled(now, before / self.agent.value.unit))

    def _update(self, batch: Unroll, targets: Targets | None) -> list[float]:
        """One update of the weights, unless its loss or gradient is not finite."""
        metrics, returns = self._set_gradients(batch, targets)
        norm = clip_global_norm(self.agent.parameters(), self.config.max_grad_norm or None)
        values = torch.cat([metrics, norm.reshape(1)]).tolist()
        if all(map(math.isfinite, values)):
            self.optimiser.step()
            if targets is None and self.agent.value.moments is not None:
                self.agent.value.renormalise(returns)
        else:
            self.skipped += 1
        return values

    def take_over(self, agent: dict[str, Any], optimiser: dict[str, Any]) -> None:
        """Go on with another learner's weights and optimiser state, but with this one's configuration and counters."""
        self.agent.load_state_dict(agent)
        # Torch would share the moments with whoever made the state.
        self.optimiser.load_state_dict(copy.deepcopy(optimiser))
        self._use_config()  # the other one's learning rate and epsilon came along with its moments

    def reconfigure(self, config: LearnerConfig) -> None:
        """Learn by `config` from now on; weights and moments stay. Raises ValueError for another optimiser."""
        if config.optimiser != self.config.optimiser:
            raise ValueError(f"optimiser is {config.optimiser!r}; allowed: {self.config.optimiser!r}, as before")
        self.config = config
        self._use_config()

    def effective(self, setting: str) -> float:
        """A numeric setting as the last update used it, or, before one, as the next one will.

        Where the optimiser has a number of its own, it is that number; the learning rate is given before its schedule.
        """
        group = self.optimiser.param_groups[0]
        if setting == "lr":
            share = self._lr_share(self._scheduled_at)
            return self.config.lr if group["lr"] == self.config.lr * share else group["lr"] / (share or 1.0)
        if setting == "adam_beta1" and "betas" in group:
            return group["betas"][0]
        return group.get(_IN_OPTIMISER.get(setting, ""), self.config.value(setting))

    def state_dict(self) -> dict[str, Any]:
        """Everything the next update depends on."""
        return {
            "agent": self.agent.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "updates": self.updates,
            "steps": self.steps,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.updates, self.steps, self.skipped = state["updates"], state["steps"], state["skipped"]
        self.take_over(state["agent"], state["optimiser"])

    def _use_config(self) -> float:
        """Give the optimiser the configuration's numbers, as the schedule has them now; returns the learning rate."""
        self._scheduled_at = self.steps
        lr = self.config.lr * self._lr_share(self.steps)
        numbers = {ours: getattr(self.config, name) for name, ours in _IN_OPTIMISER.items()}
        numbers |= {"lr": lr, "betas": (self.config.adam_beta1, ADAM_BETA2)}
        set_hyperparameters(self.optimiser, numbers)
        self._entropy_share = scheduled(self.config.entropy_schedule, 1.0, self.steps, self.total_steps)
        return lr

    def _lr_share(self, step: int) -> float:
        """The schedule's factor on the learning rate."""
        return scheduled(self.config.lr_schedule, 1.0, step, self.total_steps, self.config.lr_warmup)

    def _set_gradients(self, batch: Unroll, targets: Targets | None) -> tuple[Tensor, Tensor]:
        """Leave the gradient of the batch's loss in the parameters; returns the metrics and the returns."""
        steps = max(_valid_steps(batch), 1)
        scale = 1.0 / steps if self.config.reduction == "mean" else 1.0
        total, metrics, returns = batch_loss(
            self.agent, batch, self.config, scale, 1.0 / steps, targets, self._entropy_share
        )
        parameters = list(self.agent.parameters())
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return metrics, returns


def evaluate(agent: Agent, batch: Unroll, config: LearnerConfig) -> Evaluation:
    """One pass of the network over an unroll [T, B]; rewards and values in the units of the value head."""
    out = agent.unroll(batch.env, batch.agent.action, batch.initial_state, config.bptt_length or None)
    values = out.value[:-1]
    log_policies = log_policy(agent.action_spec, out.logits[:-1])
    log_behaviours = log_policy(agent.action_spec, batch.agent.logits)
    reward = batch.env.reward
    if config.reward_clip:
        reward = reward.clamp(-config.reward_clip, config.reward_clip)
    bootstrap = out.value[-1].detach()
    if agent.value.moments is not None:
        reward, values, bootstrap = (x / agent.value.unit for x in (reward, values, bootstrap))
    now = Pass(
        transitions(reward, batch.env.terminated, batch.env.truncated, values, config.discount),
        values,
        bootstrap,
        log_probability(agent.action_spec, log_policies, batch.agent.action),
        log_probability(agent.action_spec, log_behaviours, batch.agent.action),
    )
    auxiliary = None if out.auxiliary is None else out.auxiliary[:-1]
    return Evaluation(now, log_policies, log_behaviours, auxiliary)


def batch_loss(
    agent: Agent,
    batch: Unroll,
    config: LearnerConfig,
    scale: float,
    metric_scale: float,
    targets: Targets | None = None,
    entropy_share: float = 1.0,
) -> LossTerms:
    """The loss of an unroll [T, B]: sums over its valid steps, times `scale`; metrics are sums times `metric_scale`.

    total = policy + value_cost * value + entropy_cost * (-entropy) + auxiliary_cost * auxiliary

    Without `targets` they are those of this very pass. `entropy_share` is the schedule's factor on the entropy cost.
    """
    now, log_policies, log_behaviours, auxiliary = evaluate(agent, batch, config)
    valid = now.step.valid
    if targets is None:
        fixed = now._replace(values=now.values.detach(), log_policy=now.log_policy.detach())
        targets = config.method.targets(fixed)
    terms = config.method.terms(now, targets)
    entropy = entropy_of(agent.action_spec, log_policies)

    def weighted(cost: float, each: Tensor) -> Tensor:
        return cost * losses.reduce(each, valid, "sum")

    parts = [
        weighted(1.0, terms.policy),
        weighted(config.value_cost, terms.value),
        weighted(entropy_share * config.entropy_cost, -entropy),
        weighted(config.auxiliary_cost, torch.zeros_like(entropy) if auxiliary is None else auxiliary),
    ]
    total = scale * (parts[0] + parts[1] + parts[2] + parts[3])
    with torch.no_grad():
        kl = kl_divergence(agent.action_spec, log_behaviours, log_policies)
        means = [metric_scale * losses.reduce(x, valid, "sum") for x in (entropy, kl, *terms.metrics)]
        metrics = torch.stack([*(scale * part for part in parts), total, *means])
    return LossTerms(total, metrics.detach(), targets.values[valid] * agent.value.unit)


def rescaled(now: Pass, factor: Tensor) -> Pass:
    """The same pass with rewards and values in other units."""
    step = now.step._replace(rewards=now.step.rewards * factor)
    return now._replace(step=step, values=now.values * factor, bootstrap=now.bootstrap * factor)


def _valid_steps(batch: Unroll) -> int:
    """Steps of a batch whose action counted."""
    return int((~(batch.env.terminated | batch.env.truncated)[:-1]).sum())


def _means(updates: Sequence[Sequence[float]]) -> list[float]:
    """Means of each metric over the updates of a batch; of several, values that are not finite are left out."""
    if len(updates) == 1:
        return list(updates[0])
    means: list[float] = []
    for metric in zip(*updates, strict=True):
        finite = [value for value in metric if math.isfinite(value)]
        means.append(sum(finite) / len(finite) if finite else math.nan)
    return means
