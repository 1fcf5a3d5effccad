"""PPO's formulas against loops written from the paper, and its minibatches."""

import math

import pytest
import torch

from engram.agents.specs import ChoiceSpec
from engram.learners.algorithms import make_algorithm
from engram.learners.algorithms.algorithm import Pass, Targets
from engram.learners.returns import Transitions

T, B = 6, 5


def example() -> tuple[Pass, Targets]:
    draw = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    valid = torch.rand(T, B, generator=draw) < 0.8
    discounts = 0.9 * (torch.rand(T, B, generator=draw) < 0.8).double()
    now = Pass(
        Transitions(normal(T, B), discounts, valid),
        normal(T, B).requires_grad_(),
        normal(B),
        (-normal(T, B).abs()).requires_grad_(),
        -normal(T, B).abs(),
        *normal(3, T, B, 2).unbind(),  # the policies and features, which PPO does not use
        ChoiceSpec((2,)),
    )
    return now, Targets(normal(T, B), normal(T, B))


def test_the_surrogate_is_the_papers() -> None:
    now, targets = example()
    now = now._replace(values=now.values.detach(), log_policy=now.log_policy.detach())
    terms = make_algorithm("ppo", clip=0.3).terms(now, targets)
    clipped = 0
    for t in range(T):
        for b in range(B):
            if not now.step.valid[t, b]:
                continue
            ratio = math.exp(float(now.log_policy[t, b]) - float(now.log_behavior[t, b]))
            advantage = float(targets.advantages[t, b])
            bounded = min(max(ratio, 0.7), 1.3)
            assert float(terms.policy[t, b]) == pytest.approx(-min(ratio * advantage, bounded * advantage))
            assert float(terms.metrics[0][t, b]) == float(bounded != ratio)
            clipped += bounded != ratio
            error = float(targets.values[t, b]) - float(now.values[t, b])
            assert float(terms.value[t, b]) == pytest.approx(0.5 * error**2)
    assert 0 < clipped < T * B


def test_a_ratio_beyond_the_clip_gets_no_gradient_only_where_it_would_earn() -> None:
    now, targets = example()
    terms = make_algorithm("ppo").terms(now, targets)
    (gradient,) = torch.autograd.grad(terms.policy.sum(), now.log_policy)
    ratio = (now.log_policy - now.log_behavior).exp()
    earns = ((ratio > 1.2) & (targets.advantages > 0)) | ((ratio < 0.8) & (targets.advantages < 0))
    expected = torch.where(earns | ~now.step.valid, 0.0, -ratio * targets.advantages)
    torch.testing.assert_close(gradient, expected.detach())


def test_advantages_are_generalized_and_standardized_over_the_steps_that_happened() -> None:
    now, _ = example()
    now = now._replace(values=now.values.detach())
    plain = make_algorithm("ppo", gae_lambda=0.8, normalize_advantages=False).targets(now)
    values = torch.cat([now.values, now.bootstrap.unsqueeze(0)])
    for b in range(B):
        for t in range(T):
            total, weight = 0.0, 1.0
            for s in range(t, T):
                discount = float(now.step.discounts[s, b])
                error = float(now.step.rewards[s, b]) + discount * float(values[s + 1, b]) - float(values[s, b])
                total += weight * error
                weight *= discount * 0.8
            assert float(plain.advantages[t, b]) == pytest.approx(total)
            assert float(plain.values[t, b]) == pytest.approx(total + float(values[t, b]))
    found = make_algorithm("ppo", gae_lambda=0.8).targets(now).advantages[now.step.valid]
    raw = plain.advantages[now.step.valid]
    torch.testing.assert_close(found, (raw - raw.mean()) / raw.std(), rtol=1e-6, atol=1e-6)


def test_advantages_that_hardly_deviate_stay_small() -> None:
    now, _ = example()
    now = now._replace(values=now.values.detach())

    def advantages(floor: float) -> torch.Tensor:
        return make_algorithm("ppo", advantage_floor=floor).targets(now).advantages

    deviation = float(make_algorithm("ppo", normalize_advantages=False).targets(now).advantages[now.step.valid].std())
    assert torch.equal(advantages(0.9 * deviation), advantages(0.0))
    torch.testing.assert_close(advantages(4 * deviation), advantages(0.0) / 4)


def test_every_epoch_visits_every_environment_once_in_another_order() -> None:
    groups = make_algorithm("ppo", epochs=3, minibatches=4).minibatches(10, torch.Generator().manual_seed(0))
    assert len(groups) == 12
    chosen = [group.tolist() for group in groups if group is not None]
    epochs = [[each for group in chosen[4 * e : 4 * e + 4] for each in group] for e in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    again = make_algorithm("ppo", epochs=3, minibatches=4).minibatches(10, torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) for a, b in zip(groups, again, strict=True) if a is not None and b is not None)
    assert make_algorithm("ppo", epochs=2, minibatches=4).minibatches(1, torch.Generator()) == [None, None]
