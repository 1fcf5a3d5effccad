import math

import numpy as np
import pytest
import torch

from engram.learners.returns import n_step_returns
from engram.learners.vtrace import from_importance_weights

Case = dict[str, torch.Tensor]


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)


def random_case(seed: int, steps: int = 6, batch: int = 3) -> Case:
    draw = np.random.default_rng(seed)
    ends = draw.random((steps, batch)) < 0.2
    case = {
        "log_rhos": draw.normal(0, 1.5, (steps, batch)),
        "discounts": np.where(ends, 0, draw.uniform(0.5, 1, (steps, batch))),
        "rewards": draw.normal(0, 2, (steps, batch)),
        "values": draw.normal(0, 3, (steps, batch)),
        "bootstrap_value": draw.normal(0, 3, batch),
    }
    return {name: torch.from_numpy(array) for name, array in case.items()}


def from_definition(case: Case, clip_rho: float, clip_pg_rho: float) -> tuple[np.ndarray, np.ndarray]:
    """IMPALA's equation 1, the sum of products itself: v_s = V_s + sum_t (prod d) (prod c) delta_t."""
    rhos = np.exp(case["log_rhos"].numpy())
    discounts, rewards = case["discounts"].numpy(), case["rewards"].numpy()
    values = np.concatenate([case["values"].numpy(), case["bootstrap_value"].numpy()[None]])
    steps, batch = rewards.shape
    vs = values.copy()
    for b in range(batch):
        for s in range(steps):
            for t in range(s, steps):
                weight = math.prod(discounts[i, b] * min(1.0, rhos[i, b]) for i in range(s, t))
                error = rewards[t, b] + discounts[t, b] * values[t + 1, b] - values[t, b]
                vs[s, b] += weight * min(clip_rho, rhos[t, b]) * error
    advantages = np.minimum(clip_pg_rho, rhos) * (rewards + discounts * vs[1:] - values[:-1])
    return vs[:-1], advantages


@pytest.mark.parametrize("clip_rho", [None, 0.0, 0.7, 1.0, 2.5])
@pytest.mark.parametrize("clip_pg_rho", [None, 0.0, 1.3])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_sum_of_products(seed: int, clip_rho: float | None, clip_pg_rho: float | None) -> None:
    case = random_case(seed)
    expected = from_definition(
        case, math.inf if clip_rho is None else clip_rho, math.inf if clip_pg_rho is None else clip_pg_rho
    )
    found = from_importance_weights(**case, clip_rho_threshold=clip_rho, clip_pg_rho_threshold=clip_pg_rho)
    np.testing.assert_allclose(found.vs, expected[0], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.pg_advantages, expected[1], rtol=1e-10, atol=1e-10)


def test_scalable_agent_check_values() -> None:
    found = from_importance_weights(
        log_rhos=column(-2.5, -1.5, -0.5, 0.5, 1.5),
        discounts=column(0.9, 0.9, 0.9, 0.9, 0.9),
        rewards=column(0, 1, 2, 3, 4),
        values=column(0, 1, 2, 3, 4),
        bootstrap_value=torch.tensor([1.0], dtype=torch.float64),
        clip_rho_threshold=3.7,
        clip_pg_rho_threshold=2.2,
    )
    torch.testing.assert_close(found.vs, column(0.200182, 2.709682, 8.513628, 11.932397, 7.33), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        found.pg_advantages, column(0.200182, 1.709682, 6.513628, 10.876614, 1.98), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize(
    ("clip", "vs", "advantages"),
    [
        (1.0, (5.9005, 4.95, 10, 0.3675), (5.4005, 3.95, 8, 0.8675)),
        (None, (7.3905, 4.95, 10, 0.3675), (10.801, 3.95, 8, 0.8675)),
    ],
)
def test_hand_computed_with_an_episode_end(
    clip: float | None, vs: tuple[float, ...], advantages: tuple[float, ...]
) -> None:
    found = from_importance_weights(
        log_rhos=column(2, 0.5, 1, 0.25).log(),
        discounts=column(0.99, 0.99, 0, 0.99),
        rewards=column(1, -1, 10, 0),
        values=column(0.5, 1, 2, -0.5),
        bootstrap_value=torch.tensor([3.0], dtype=torch.float64),
        clip_rho_threshold=clip,
        clip_pg_rho_threshold=clip,
    )
    torch.testing.assert_close(found.vs, column(*vs))
    torch.testing.assert_close(found.pg_advantages, column(*advantages))


def test_hand_computed_on_policy() -> None:
    found = from_importance_weights(
        log_rhos=column(0, 0, 0),
        discounts=column(0.9, 0, 0.9),
        rewards=column(1, 2, 3),
        values=column(0.5, 0.25, -1),
        bootstrap_value=torch.tensor([4.0], dtype=torch.float64),
    )
    torch.testing.assert_close(found.vs, column(2.8, 2, 6.6))
    torch.testing.assert_close(found.pg_advantages, column(2.3, 1.75, 7.6))


@pytest.mark.parametrize("seed", range(5))
def test_on_policy_targets_are_n_step_returns(seed: int) -> None:
    case = random_case(seed, steps=9)
    case["log_rhos"] = torch.zeros_like(case["log_rhos"])
    found = from_importance_weights(**case)
    expected = n_step_returns(case["rewards"], case["discounts"], case["values"], case["bootstrap_value"])
    torch.testing.assert_close(found.vs, expected.targets)
    torch.testing.assert_close(found.pg_advantages, expected.advantages)


def test_a_threshold_of_zero_is_not_none() -> None:
    case = random_case(1)
    found = from_importance_weights(**case, clip_rho_threshold=0.0, clip_pg_rho_threshold=0.0)
    torch.testing.assert_close(found.vs, case["values"])
    assert not found.pg_advantages.any()


def test_batch_rows_are_independent() -> None:
    case = random_case(2, batch=4)
    whole = from_importance_weights(**case)
    for b in range(4):
        alone = from_importance_weights(**{name: tensor[..., b : b + 1] for name, tensor in case.items()})
        torch.testing.assert_close(alone.vs, whole.vs[:, b : b + 1], rtol=0, atol=0)
        torch.testing.assert_close(alone.pg_advantages, whole.pg_advantages[:, b : b + 1], rtol=0, atol=0)


def test_targets_carry_no_gradient() -> None:
    case = {name: tensor.requires_grad_() for name, tensor in random_case(3).items()}
    found = from_importance_weights(**case)
    assert not found.vs.requires_grad
    assert not found.pg_advantages.requires_grad


@pytest.mark.parametrize("name", ["log_rhos", "discounts", "values", "bootstrap_value"])
def test_a_shape_that_would_broadcast_is_refused(name: str) -> None:
    case = random_case(4)
    case[name] = case[name].unsqueeze(-1)
    with pytest.raises(ValueError, match="expected"):
        from_importance_weights(**case)
