"""The comparison with the reference learner fails for learners that are wrong, each in one way."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from engram.agents import unique_observations
from engram.agents.cores.fast import routes
from engram.agents.threads import use_threads
from engram.learners import learner, optimizers
from engram.learners import loss as losses
from engram.learners.algorithms.ppo import PPO
from engram.learners.config import LearnerConfig
from engram.learners.population import vectorized
from reference_cases import TORSOS, Case, compare, in_double, small_agent

CONFIG = LearnerConfig(lr=1e-2)
GRU = Case(TORSOS["none"][0], small_agent("gru", TORSOS["none"][1]), CONFIG)
LSTM = GRU._replace(agent=small_agent("lstm", TORSOS["none"][1]), learner=replace(CONFIG, max_grad_norm=0.01))
CONVOLUTIONS = Case(TORSOS["convolutions"][0], small_agent("gru", TORSOS["convolutions"][1]), CONFIG)
PPO_CASE = GRU._replace(learner=replace(CONFIG, algorithm="ppo", algorithm_args={"epochs": 2, "minibatches": 2}))
EXACT = replace(CONFIG, discount=0.9375, entropy_cost=0.0625)
"""Settings that float32, in which members of a batched call have theirs, represents exactly."""
MEMBERS = [GRU._replace(learner=replace(EXACT, value_cost=cost)) for cost in (0.5, 0.25)]
WIDE = GRU._replace(num_envs=40, steps=4)


@pytest.fixture(autouse=True)
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with in_double(monkeypatch):
        yield


def assign(parameters: list[Any], gradients: list[Any]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def layouts(patch: pytest.MonkeyPatch) -> None:
    """Gradients of convolutions are assigned as they come, channels-last, and no guard looks at them."""
    patch.setattr(learner, "set_gradients", assign)
    patch.setattr(optimizers, "same_layout", lambda parameter, other: True)

    def channels_last(minibatch: losses.Minibatch) -> losses.Gradient:
        gradient = losses.gradient(minibatch)
        return gradient._replace(
            gradients=[
                g.contiguous(memory_format=torch.channels_last) if g is not None and g.dim() == 4 else g
                for g in gradient.gradients
            ]
        )

    patch.setattr(learner, "gradient", channels_last)


def aliases(patch: pytest.MonkeyPatch) -> None:
    """Two parameters share one gradient tensor, which is clipped twice."""
    patch.setattr(learner, "set_gradients", assign)


def doubled(patch: pytest.MonkeyPatch) -> None:
    """The gradient of one parameter is doubled."""

    def double(parameters: list[Any], gradients: Any) -> None:
        optimizers.set_gradients(parameters, gradients)
        parameters[-1].grad = 2 * parameters[-1].grad

    patch.setattr(learner, "set_gradients", double)


def skipped(patch: pytest.MonkeyPatch) -> None:
    """The last minibatch of a batch is left out."""
    minibatches = PPO.minibatches
    patch.setattr(PPO, "minibatches", lambda *args: minibatches(*args)[:-1])


def no_value_cost(patch: pytest.MonkeyPatch) -> None:
    """The value cost counts as 0 where targets are computed once per batch."""
    loss = losses.loss

    def wrong(minibatch: losses.Minibatch) -> losses.LossTerms:
        config = minibatch.config if minibatch.targets is None else replace(minibatch.config, value_cost=0.0)
        return loss(minibatch._replace(config=config))

    patch.setattr(losses, "loss", wrong)


def value_cost_of_the_first(patch: pytest.MonkeyPatch) -> None:
    """Members of a batched call learn with the first one's value cost."""
    patch.setattr(vectorized, "VARIED", tuple(name for name in vectorized.VARIED if name != "value_cost"))
    patch.setattr(vectorized, "OWN", (*vectorized.OWN, "value_cost"))


def mixed(patch: pytest.MonkeyPatch) -> None:
    """De-duplication returns two observations' features exchanged."""
    look_up = unique_observations.look_up

    def wrong(*args: Any) -> int:
        count = look_up(*args)
        index = args[5]
        other = int((index != index[0]).nonzero()[0][0])
        index[[0, other]] = index[[other, 0]]
        return count

    patch.setattr(unique_observations, "look_up", wrong)


def dropped(patch: pytest.MonkeyPatch) -> None:
    """Threads leave out the last group of environments."""

    def wrong(work: Callable[[int, int, int], None], batch: int, width: int) -> None:
        for number in range(routes.groups(batch, width) - 1):
            work(number, number * width, min((number + 1) * width, batch))

    patch.setattr(routes, "by_groups", wrong)


MUTATIONS: list[tuple[Callable[[pytest.MonkeyPatch], None], list[Case]]] = [
    (layouts, [CONVOLUTIONS]),
    (aliases, [LSTM]),
    (doubled, [GRU]),
    (skipped, [PPO_CASE]),
    (no_value_cost, [PPO_CASE]),
    (value_cost_of_the_first, MEMBERS),
    (mixed, [CONVOLUTIONS]),
    (dropped, [WIDE]),
]


@pytest.mark.parametrize(("mutate", "cases"), MUTATIONS, ids=[mutate.__name__ for mutate, _ in MUTATIONS])
def test_the_comparison_fails_for(
    mutate: Callable[[pytest.MonkeyPatch], None], cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_threads(2)
    try:
        compare(cases)
        mutate(monkeypatch)
        with pytest.raises(AssertionError, match="not close"):
            compare(cases)
    finally:
        use_threads(1)
