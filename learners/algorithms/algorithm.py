"""Interface of an algorithm: from one pass of the network over a batch of T steps and B environments to value targets,
advantages and loss terms. The learner implements all else: resets, episode boundaries, masks, bonuses, counters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ...agents.specs import ActionSpec, entropy, kl_divergence
from ..returns import Transitions


class Pass(NamedTuple):
    """One pass of the network over a batch, with the actions and probabilities of the behavior policy."""

    step: Transitions  # Rewards, discounts and the mask of the transitions t -> t+1, [T, B] each
    values: Tensor  # V(x_t), float [T, B], with gradient
    bootstrap: Tensor  # V(x_T), float [B], without gradient
    log_policy: Tensor  # log pi(a_t | x_t) of the actions taken, float [T, B], with gradient
    log_behavior: Tensor  # log mu(a_t | x_t) of the behavior policy, float [T, B]
    log_policies: Tensor
    """log pi(a | x_t) of every option of every choice, float [T, B, A], with gradient; -inf for invalid actions. For a
    Box space, means and log standard deviations, [T, B, 2 K]."""
    log_behaviors: Tensor  # Log probabilities of the behavior policy, float [T, B, A]
    features: Tensor  # Outputs of the core, inputs of the heads, float [T, B, H], with gradient
    action_spec: ActionSpec  # Action space
    auxiliary: Tensor | None = None  # Auxiliary loss of the core, float [T, B]
    prediction: Tensor | None = None  # Error of predictions of the next step, float [T, B]
    player: Tensor | None = None  # Actions of the imitated player, [T, B, ...]
    total: Callable[..., Sequence[Any]] = lambda *parts: parts  # Sums tensors over the learners that share the batch

    def for_returns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rewards, discounts, values and bootstrap, the first arguments of `n_step_returns` and the like."""
        return self.step.rewards, self.step.discounts, self.values, self.bootstrap

    def entropy(self) -> Tensor:
        """H(pi(. | x_t)) in nats, float [T, B], with gradient."""
        return entropy(self.action_spec, self.log_policies)

    def kl(self) -> Tensor:
        """KL(mu(. | x_t) || pi(. | x_t)) in nats, exact, float [T, B], with gradient."""
        return kl_divergence(self.action_spec, self.log_behaviors, self.log_policies)


class Targets(NamedTuple):
    """Targets of values and policy, float [T, B] each, without gradient."""

    values: Tensor
    advantages: Tensor


class Terms(NamedTuple):
    """The loss of every step, float [T, B] each; invalid steps may contain any finite value."""

    policy: Tensor
    value: Tensor
    metrics: tuple[Tensor, ...]  # One value [T, B] per name in `Algorithm.metrics`, without gradient
    extra: Tensor | None = None  # Additional loss with weight 1, such as one on `Pass.features`, or None


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Settings of an algorithm that has none."""


class Algorithm:
    """Base class of algorithms; `settings` is an instance of its `Settings`."""

    Settings: ClassVar[type[Any]] = NoSettings
    """Frozen dataclass of the settings of this algorithm, each with a docstring and a check."""
    on_policy: bool  # Whether every batch must be collected with the newest weights (synchronous mode)
    metrics: ClassVar[tuple[str, ...]] = ()  # Names of the algorithm's own metrics, means over valid steps
    targets_once: ClassVar[bool] = False
    """Whether targets are computed once per batch, by a pass before the first update, instead of in every pass."""
    target_kl: float = 0.0
    """Mean KL(mu || pi) in nats above which an update and the remaining updates of its batch are skipped; 0 disables
    this limit."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def minibatches(self, num_envs: int, generator: torch.Generator) -> list[Tensor | None]:
        """Return the environments [K] of each update from a batch, in order; None means all of them. Updates use whole
        unrolls, since a recurrent state is exact only at the start of an unroll."""
        del num_envs, generator
        return [None]

    def targets(self, now: Pass) -> Targets:
        """Compute value targets and advantages from a pass without gradients."""
        raise NotImplementedError

    def terms(self, now: Pass, targets: Targets) -> Terms:
        """Compute the loss of every step."""
        raise NotImplementedError
