"""An unroll with episode ends inside must learn what its episodes would, one by one."""

import numpy as np
import pytest
import torch

from engram.learners.algorithms.a2c import generalized_advantages
from engram.learners.returns import n_step_returns, transitions
from engram.learners.vtrace import from_importance_weights

Rows = dict[str, torch.Tensor]


def random_rows(seed: int, steps: int, batch: int, ends: float) -> Rows:
    """T+1 steps of a NEXT_STEP environment: after a final step comes a first one, with reward 0 and no flag."""
    draw = np.random.default_rng(seed)
    reward, value = draw.normal(0, 2, (steps + 1, batch)), draw.normal(0, 3, (steps + 1, batch))
    terminated, truncated = np.zeros((2, steps + 1, batch), bool)
    for b in range(batch):
        first = False
        for t in range(steps + 1):
            if first:
                reward[t, b], first = 0, False
            elif draw.random() < ends:
                kind = draw.integers(3)
                terminated[t, b], truncated[t, b], first = kind != 1, kind != 0, True
    rows = {"reward": reward, "terminated": terminated, "truncated": truncated, "value": value}
    return {name: torch.from_numpy(array) for name, array in rows.items()}


def pieces(rows: Rows, b: int) -> list[tuple[int, int]]:
    """(first row, last row) of every stretch of one episode in column b."""
    final = (rows["terminated"] | rows["truncated"])[:, b].tolist()
    cuts = [t for t, is_final in enumerate(final) if is_final]
    starts, stops = [0, *(t + 1 for t in cuts)], [*cuts, len(final) - 1]
    return [(start, stop) for start, stop in zip(starts, stops, strict=True) if stop > start]


@pytest.mark.parametrize("ends", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_an_unroll_with_boundaries_equals_its_episodes_one_by_one(seed: int, ends: float) -> None:
    """Each stretch alone: its own rewards, gamma per step, and the last row's value unless that row is terminated."""
    gamma, steps, batch = 0.9, 12, 4
    rows = random_rows(seed, steps, batch, ends)
    log_rhos = torch.from_numpy(np.random.default_rng(seed + 100).normal(0, 1, (steps, batch)))
    values, bootstrap = rows["value"][:-1], rows["value"][-1]
    cut = transitions(rows["reward"], rows["terminated"], rows["truncated"], values, gamma)
    arguments = (cut.discounts, cut.rewards, values, bootstrap)
    trace = from_importance_weights(log_rhos, *arguments)
    gae = generalized_advantages(cut.rewards, cut.discounts, values, bootstrap, 0.8)
    n_step = n_step_returns(cut.rewards, cut.discounts, values, bootstrap)
    covered = torch.zeros_like(cut.valid)
    for b in range(batch):
        for start, stop in pieces(rows, b):
            here, column = slice(start, stop), slice(b, b + 1)
            covered[here, b] = True
            end_value = torch.where(rows["terminated"][stop, column], 0.0, rows["value"][stop, column])
            own = {
                "rewards": rows["reward"][start + 1 : stop + 1, column],
                "discounts": torch.full((stop - start, 1), gamma, dtype=torch.float64),
                "values": values[here, column],
                "bootstrap_value": end_value,
            }
            alone = from_importance_weights(log_rhos[here, column], **own)
            torch.testing.assert_close(trace.vs[here, column], alone.vs)
            torch.testing.assert_close(trace.pg_advantages[here, column], alone.pg_advantages)
            torch.testing.assert_close(
                gae.advantages[here, column], generalized_advantages(**own, lambda_=0.8).advantages
            )
            torch.testing.assert_close(n_step.targets[here, column], n_step_returns(**own).targets)
    assert torch.equal(cut.valid, covered)
    torch.testing.assert_close(trace.vs[~cut.valid], values[~cut.valid])
    assert not trace.pg_advantages[~cut.valid].any()


def test_one_termination_and_one_truncation_by_hand() -> None:
    """Row 2 is final in both columns: terminated in the first, truncated in the second."""
    reward = torch.tensor([[9.0, 9.0], [1.0, 1.0], [2.0, 2.0], [0.0, 0.0], [4.0, 4.0]])
    flag = torch.tensor([False, False, True, False, False])
    never = torch.zeros(5, dtype=torch.bool)
    values = torch.tensor([[0.0, 0.0], [0.0, 0.0], [7.0, 7.0], [0.0, 0.0]], requires_grad=True)
    cut = transitions(reward, torch.stack([flag, never], 1), torch.stack([never, flag], 1), values, 0.5)
    assert cut.valid.tolist() == [[True, True], [True, True], [False, False], [True, True]]
    assert cut.rewards.tolist() == [[1.0, 1.0], [2.0, 2.0], [7.0, 7.0], [4.0, 4.0]]
    assert cut.discounts.tolist() == [[0.5, 0.5], [0.0, 0.5], [0.0, 0.0], [0.5, 0.5]]
    assert not cut.rewards.requires_grad
    found = n_step_returns(cut.rewards, cut.discounts, values.detach(), torch.tensor([10.0, 10.0])).targets
    assert found.tolist() == [[2.0, 3.75], [2.0, 5.5], [7.0, 7.0], [9.0, 9.0]]


def test_a_step_that_is_terminated_and_truncated_at_once_does_not_bootstrap() -> None:
    both = torch.tensor([[False], [True]])
    cut = transitions(torch.zeros(2, 1), both, both, torch.zeros(1, 1), 0.99)
    assert cut.discounts.tolist() == [[0.0]]
