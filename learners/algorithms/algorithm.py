"""The contract of an algorithm: what the learner asks of it for every batch.

An algorithm turns one pass of the network over a batch of unrolls into value targets, advantages and per-step loss
terms. Resets, episode boundaries, masks, the entropy bonus, a core's own loss, the optimizer and the counters are the
learner's. Shapes: T steps, B environments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ...agents.specs import ActionSpec, entropy, kl_divergence
from ..returns import Transitions


class Imitated(NamedTuple):
    """Agreement of the policy with an imitated player, float [T, B] each."""

    log_policy: Tensor
    """log pi(a*_t | x_t) of the player's actions, with gradient."""
    agrees: Tensor
    """1 where the likeliest action is the player's, else 0."""


class Pass(NamedTuple):
    """One pass of the network over a batch, with the actions and probabilities of the behavior policy."""

    step: Transitions
    """Rewards, discounts and the mask of the transitions t -> t+1, [T, B] each."""
    values: Tensor
    """V(x_t), float [T, B], with gradient."""
    bootstrap: Tensor
    """V(x_T), float [B], without gradient."""
    log_policy: Tensor
    """log pi(a_t | x_t) of the actions taken, float [T, B], with gradient."""
    log_behavior: Tensor
    """log mu(a_t | x_t) of the policy that acted, float [T, B]."""
    log_policies: Tensor
    """log pi(a | x_t) of every option of every choice, float [T, B, A], with gradient; -inf for invalid actions. Of a
    Box space the means and log standard deviations, [T, B, 2 K]."""
    log_behaviors: Tensor
    """Those of the policy that acted, float [T, B, A]."""
    features: Tensor
    """The core's outputs, which the heads read, float [T, B, H], with gradient."""
    action_spec: ActionSpec
    """The action space."""

    player: Imitated | None = None
    """With `imitate` alone."""
    total: Callable[..., Sequence[Any]] = lambda *parts: parts
    """Sums tensors over the learners that share the batch, for statistics of the batch."""

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
    """The loss of every step, float [T, B] each; steps that did not happen may hold anything finite."""

    policy: Tensor
    value: Tensor
    metrics: tuple[Tensor, ...]
    """One [T, B] per name in `Algorithm.metrics`, without gradient."""
    extra: Tensor | None = None
    """An additional loss with weight 1, such as one on `Pass.features`; None for none."""


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """An algorithm without settings of its own."""


class Algorithm:
    """Base of every algorithm; `settings` is an instance of its `Settings`."""

    Settings: ClassVar[type[Any]] = NoSettings
    """Frozen dataclass of the settings that this algorithm alone reads, each with a docstring and checked."""
    on_policy: ClassVar[bool]
    """Whether every batch must be made by the newest weights (synchronous mode)."""
    metrics: ClassVar[tuple[str, ...]] = ()
    """Names of the algorithm's own metrics, means over the steps that happened."""
    targets_once: ClassVar[bool] = False
    """Whether targets are computed once per batch, by a pass before the first update, and not in every pass."""
    target_kl: float = 0.0
    """Mean KL(mu || pi) of an update in nats above which it and the remaining updates of its batch are left out; 0
    leaves none out."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def minibatches(self, num_envs: int, generator: torch.Generator) -> list[Tensor | None]:
        """The environments [K] of each update that a batch is used for, in order; None stands for all of them.

        Whole environments, never pieces of time: a recurrent state is exact only from the start of an unroll.
        """
        del num_envs, generator
        return [None]

    def targets(self, now: Pass) -> Targets:
        """Value targets and advantages from a pass whose tensors carry no gradient."""
        raise NotImplementedError

    def terms(self, now: Pass, targets: Targets) -> Terms:
        """The loss of every step."""
        raise NotImplementedError
