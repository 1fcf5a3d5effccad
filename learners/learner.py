"""The learner: one update of the agent from one batch of unrolls, by V-trace (IMPALA) or A2C."""

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..actors.unroll import Unroll, to_device
from ..agents.agent import Agent
from ..agents.cores.compiled import compile_steps
from ..agents.specs import log_policy, log_probability
from . import losses, returns, vtrace
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
    "vtrace/rho_mean",
    "vtrace/rho_clip_rate",
    "policy/entropy",
    "policy/kl_behaviour",
)
"""What `LossTerms` holds, in order. Losses are weighted, as in the total; the rest are means over valid steps."""


_IN_OPTIMISER = {"eps": "eps", "rmsprop_decay": "decay", "rmsprop_momentum": "momentum"}
"""Settings that the optimiser holds, by its own names; besides them the learning rate."""


class LossTerms(NamedTuple):
    """The loss of a batch."""

    total: Tensor
    """Scalar with gradient."""
    metrics: Tensor
    """float [len(METRICS)], without gradient."""


class Learner:
    """Holds an agent and its optimiser; `step` applies one update.

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
            betas=(0.9, 0.999),
        )
        self.updates = 0
        self.steps = 0
        """Environment steps consumed."""
        self.skipped = 0
        """Updates left out because the loss or its gradient was not finite."""
        if config.compile:
            compile_steps(agent.core)
        self._use_config()

    def step(self, batch: Unroll) -> dict[str, float]:
        """One update from a batch [T, B]; returns the metrics of METRICS and `learner/…`, and counts its steps."""
        batch = to_device(batch, self.device)
        lr = self._use_config()
        steps = int((~(batch.env.terminated | batch.env.truncated)[:-1]).sum())
        metrics = self._set_gradients(batch, max(steps, 1))
        norm = clip_global_norm(self.agent.parameters(), self.config.max_grad_norm or None)
        *values, norm = torch.cat([metrics, norm.reshape(1)]).tolist()
        if math.isfinite(norm) and all(map(math.isfinite, values)):
            self.optimiser.step()
        else:
            self.skipped += 1
        self.updates += 1
        self.steps += steps
        return dict(zip(METRICS, values, strict=True)) | {
            "learner/grad_norm": norm,
            "learner/lr": lr,
            "learner/skipped": float(self.skipped),
        }

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
        """A numeric setting of LearnerConfig as the last update used it, or, before one, as the next one will.

        Where the optimiser has a number of its own, it is that number; the learning rate is given before its schedule.
        """
        group = self.optimiser.param_groups[0]
        if setting == "lr":
            share = scheduled(self.config.lr_schedule, 1.0, self._scheduled_at, self.total_steps)
            return self.config.lr if group["lr"] == self.config.lr * share else group["lr"] / (share or 1.0)
        return group.get(_IN_OPTIMISER.get(setting, ""), getattr(self.config, setting))

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
        lr = scheduled(self.config.lr_schedule, self.config.lr, self.steps, self.total_steps)
        numbers = {ours: getattr(self.config, name) for name, ours in _IN_OPTIMISER.items()}
        set_hyperparameters(self.optimiser, numbers | {"lr": lr})
        return lr

    def _set_gradients(self, batch: Unroll, steps: int) -> Tensor:
        """Leave the gradient of the batch's loss in the parameters; returns the metrics."""
        scale = 1.0 / steps if self.config.reduction == "mean" else 1.0
        total, metrics = batch_loss(self.agent, batch, self.config, scale, 1.0 / steps)
        parameters = list(self.agent.parameters())
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return metrics


def batch_loss(agent: Agent, batch: Unroll, config: LearnerConfig, scale: float, metric_scale: float) -> LossTerms:
    """The loss of an unroll [T, B]: sums over its valid steps, times `scale`; metrics are sums times `metric_scale`.

    total = policy + value_cost * value + entropy_cost * (-entropy) + auxiliary_cost * auxiliary
    """
    out = agent.unroll(batch.env, batch.agent.action, batch.initial_state, config.bptt_length or None)
    values = out.value[:-1]
    log_policies = log_policy(agent.action_spec, out.logits[:-1])
    chosen = log_probability(agent.action_spec, log_policies, batch.agent.action)
    log_behaviour = log_policy(agent.action_spec, batch.agent.logits)
    log_rhos = chosen.detach() - log_probability(agent.action_spec, log_behaviour, batch.agent.action)

    reward = batch.env.reward
    if config.reward_clip:
        reward = reward.clamp(-config.reward_clip, config.reward_clip)
    step = transitions(reward, batch.env.terminated, batch.env.truncated, values, config.discount)
    targets, advantages = _targets(config, log_rhos, step, values, out.value[-1].detach())
    policy = losses.policy_loss(chosen, advantages, step.valid, "sum")
    value = config.value_cost * losses.value_loss(values, targets, step.valid, "sum")
    entropy_term = config.entropy_cost * losses.entropy_loss(log_policies, step.valid, "sum")
    auxiliary = torch.zeros((), device=values.device)
    if out.auxiliary is not None:
        auxiliary = config.auxiliary_cost * losses.reduce(out.auxiliary[:-1], step.valid, "sum")
    terms = [policy, value, entropy_term, auxiliary]
    total = scale * (policy + value + entropy_term + auxiliary)

    with torch.no_grad():
        rhos = log_rhos.exp()
        clipped = (rhos > (config.clip_rho or float("inf"))).float()
        kl = losses.kl_divergence(log_behaviour, log_policies)
        means = [losses.reduce(x, step.valid, "sum") for x in (rhos, clipped, losses.entropy(log_policies), kl)]
        metrics = torch.stack([*(scale * t for t in terms), total, *(metric_scale * m for m in means)])
    return LossTerms(total, metrics.detach())


def _targets(
    config: LearnerConfig, log_rhos: Tensor, step: Any, values: Tensor, bootstrap: Tensor
) -> tuple[Tensor, Tensor]:
    """Value targets and policy advantages [T, B] of the configured algorithm."""
    values = values.detach()
    if config.algorithm == "vtrace":
        return vtrace.from_importance_weights(
            log_rhos,
            step.discounts,
            step.rewards,
            values,
            bootstrap,
            config.clip_rho or None,
            config.clip_pg_rho or None,
        )
    return returns.generalised_advantages(step.rewards, step.discounts, values, bootstrap, config.gae_lambda)
