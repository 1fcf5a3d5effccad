import numpy as np
import pytest
import torch

from engram.learners.algorithms.a2c import generalized_advantages
from engram.learners.returns import discounted_sum, n_step_returns

Case = dict[str, torch.Tensor]


def random_case(seed: int, steps: int = 7, batch: int = 3) -> Case:
    draw = np.random.default_rng(seed)
    case = {
        "rewards": draw.normal(0, 2, (steps, batch)),
        "discounts": np.where(draw.random((steps, batch)) < 0.2, 0, draw.uniform(0.5, 1, (steps, batch))),
        "values": draw.normal(0, 3, (steps, batch)),
        "bootstrap_value": draw.normal(0, 3, batch),
    }
    return {name: torch.from_numpy(array) for name, array in case.items()}


def k_step_return(case: Case, t: int, k: int, b: int) -> float:
    """r_t + d_t r_{t+1} + ... + (d_t ... d_{t+k-1}) V_{t+k}."""
    total, weight = 0.0, 1.0
    for i in range(t, t + k):
        total += weight * float(case["rewards"][i, b])
        weight *= float(case["discounts"][i, b])
    last = t + k == len(case["rewards"])
    return total + weight * float(case["bootstrap_value"][b] if last else case["values"][t + k, b])


@pytest.mark.parametrize("seed", range(3))
def test_n_step_returns_from_the_definition(seed: int) -> None:
    case = random_case(seed)
    steps, batch = case["rewards"].shape
    found = n_step_returns(**case)
    for t in range(steps):
        for b in range(batch):
            expected = k_step_return(case, t, steps - t, b)
            assert found.targets[t, b] == pytest.approx(expected, rel=1e-12)
            assert found.advantages[t, b] == pytest.approx(expected - float(case["values"][t, b]), rel=1e-12)


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_lambda_returns_are_the_weighted_mean_of_k_step_returns(seed: int, lambda_: float) -> None:
    """(1 - lambda) sum_k lambda^(k-1) R^(k), with all remaining weight on the longest return of the unroll."""
    case = random_case(seed)
    steps, batch = case["rewards"].shape
    found = generalized_advantages(**case, lambda_=lambda_)
    for t in range(steps):
        for b in range(batch):
            longest = steps - t
            expected = lambda_ ** (longest - 1) * k_step_return(case, t, longest, b)
            expected += sum(
                (1 - lambda_) * lambda_ ** (k - 1) * k_step_return(case, t, k, b) for k in range(1, longest)
            )
            assert found.targets[t, b] == pytest.approx(expected, rel=1e-10)
            assert found.advantages[t, b] == pytest.approx(expected - float(case["values"][t, b]), rel=1e-10)


def test_discounted_sum_by_hand() -> None:
    found = discounted_sum(
        torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[0.5], [0.0], [2.0]]), torch.tensor([4.0])
    )
    assert found.tolist() == [[2.0], [2.0], [11.0]]


def test_no_gradient_and_no_broadcast() -> None:
    case = {name: tensor.requires_grad_() for name, tensor in random_case(0).items()}
    for found in (n_step_returns(**case), generalized_advantages(**case, lambda_=0.5)):
        assert not found.targets.requires_grad
        assert not found.advantages.requires_grad
    with pytest.raises(ValueError, match=r"values has shape \(7, 3, 1\); expected \(7, 3\)"):
        n_step_returns(**(case | {"values": case["values"].unsqueeze(-1)}))
    with pytest.raises(ValueError, match=r"at least one step"):
        n_step_returns(*(torch.zeros(0, 3) for _ in range(3)), bootstrap_value=torch.zeros(3))
