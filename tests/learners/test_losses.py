import math

import numpy as np
import pytest
import torch

from engram.agents import specs
from engram.learners.returns import policy_terms, valid_sum, value_terms

T, B, A = 5, 4, 3
CHOICE = specs.ChoiceSpec((A,))


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(7)


def log_policies(draw: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(draw.normal(0, 2, (T, B, A))).log_softmax(-1).requires_grad_()


def mask(draw: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(draw.random((T, B)) < 0.7)


def slow(term: "np.ndarray | list[list[float]]", valid: torch.Tensor) -> float:
    return sum(float(term[t][b]) for t in range(T) for b in range(B) if valid[t, b])


def test_every_term_from_its_formula(draw: np.random.Generator) -> None:
    valid = mask(draw)
    assert 0 < valid.sum() < T * B
    log_policy, log_behavior = log_policies(draw), log_policies(draw).detach()
    p, m = log_policy.detach().exp().numpy(), log_behavior.exp().numpy()
    advantages, values, targets = (torch.from_numpy(draw.normal(0, 2, (T, B))) for _ in range(3))
    chosen = log_policy[..., 1]

    found = valid_sum(policy_terms(chosen, advantages, valid), valid)
    assert found.item() == pytest.approx(slow(-np.log(p[..., 1]) * advantages.numpy(), valid))

    found = valid_sum(value_terms(values, targets, valid), valid)
    assert found.item() == pytest.approx(slow(0.5 * (targets.numpy() - values.numpy()) ** 2, valid))

    entropies = [[-sum(q * math.log(q) for q in p[t, b]) for b in range(B)] for t in range(T)]
    found = valid_sum(specs.entropy(CHOICE, log_policy), valid)
    assert found.item() == pytest.approx(slow(entropies, valid))

    divergences = [
        [sum(q * math.log(q / r) for q, r in zip(m[t, b], p[t, b], strict=True)) for b in range(B)] for t in range(T)
    ]
    found = valid_sum(specs.kl_divergence(CHOICE, log_behavior, log_policy), valid)
    assert found.item() == pytest.approx(slow(divergences, valid))


def test_gradients_reach_what_is_learned_and_nothing_else(draw: np.random.Generator) -> None:
    valid = torch.ones(T, B, dtype=torch.bool)
    chosen, advantages, values, targets = (
        torch.from_numpy(draw.normal(0, 1, (T, B))).requires_grad_() for _ in range(4)
    )
    total = policy_terms(chosen, advantages, valid) + value_terms(values, targets, valid)
    total.sum().backward()
    assert advantages.grad is None
    assert targets.grad is None
    torch.testing.assert_close(chosen.grad, -advantages.detach())
    torch.testing.assert_close(values.grad, (values - targets).detach())


def test_ascending_the_entropy_raises_the_entropy(draw: np.random.Generator) -> None:
    logits = torch.from_numpy(draw.normal(0, 2, (T, B, A))).requires_grad_()
    before = specs.entropy(CHOICE, logits.log_softmax(-1)).sum()
    specs.entropy(CHOICE, logits.log_softmax(-1)).sum().backward()
    assert logits.grad is not None
    after = specs.entropy(CHOICE, (logits + 0.1 * logits.grad).log_softmax(-1)).sum()
    assert after > before


def test_entropy_and_divergence_at_their_known_points() -> None:
    uniform = torch.zeros(1, 1, A, dtype=torch.float64).log_softmax(-1)
    sharp = torch.tensor([[[50.0, 0.0, 0.0]]], dtype=torch.float64).log_softmax(-1)
    assert specs.entropy(CHOICE, uniform).item() == pytest.approx(math.log(A))
    assert specs.entropy(CHOICE, sharp).item() == pytest.approx(0, abs=1e-12)
    assert specs.kl_divergence(CHOICE, uniform, uniform).item() == 0
    assert specs.kl_divergence(CHOICE, sharp, uniform).item() == pytest.approx(math.log(A))


def test_what_stands_at_an_invalid_step_does_not_matter() -> None:
    valid = torch.tensor([[True, False], [True, True]])
    values = torch.tensor([[1.0, torch.nan], [2.0, 3.0]], requires_grad=True)
    targets = torch.tensor([[0.0, torch.inf], [0.0, 0.0]])
    loss = valid_sum(value_terms(values, targets, valid), valid)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 + 2 + 4.5)
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.tensor([[1.0, 0.0], [2.0, 3.0]]))


def test_an_advantage_at_an_invalid_step_does_not_matter() -> None:
    valid = torch.tensor([[True, False]])
    chosen = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    terms = policy_terms(chosen, torch.tensor([[3.0, torch.nan]]), valid)
    valid_sum(terms, valid).backward()
    assert chosen.grad is not None
    assert chosen.grad.tolist() == [[-3.0, 0.0]]


def test_no_valid_step_gives_zero_with_zero_gradient() -> None:
    terms = torch.ones(2, 2, requires_grad=True)
    loss = valid_sum(terms, torch.zeros(2, 2, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert terms.grad is not None
    assert not terms.grad.any()


def test_bad_input() -> None:
    valid = torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"shape \(2, 1\); expected \(2, 2\)"):
        valid_sum(torch.ones(2, 1), valid)
