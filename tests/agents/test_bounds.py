"""Bounds of parameters."""

import pytest
import torch

from engram.agents.cores.simple import bounded


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_parameter_beyond_its_bounds_returns_and_leaves_no_further(sign: float) -> None:
    """Alone and in the batched pass of a population's members."""
    low, high = -5.0, 2.0
    parameter = torch.tensor([low - 1, low - 1, 0.5, high + 1, high + 1], requires_grad=True)
    weight = sign * torch.tensor([1.0, -1.0, 3.0, 1.0, -1.0])
    value = bounded(parameter, low, high)
    assert torch.equal(value, parameter.clamp(low, high))
    with torch.no_grad():
        assert torch.equal(bounded(parameter, low, high), value)
    expected = torch.where(torch.tensor([sign > 0, sign < 0, False, sign < 0, sign > 0]), 0.0, weight)
    (gradient,) = torch.autograd.grad((value * weight).sum(), parameter)
    assert torch.equal(gradient, expected)
    members = torch.func.vmap(lambda x, w: (bounded(x, low, high) * w).sum())(
        parameter.expand(2, 5), weight.expand(2, 5)
    )
    (gradient,) = torch.autograd.grad(members.sum(), parameter)
    assert torch.equal(gradient, 2 * expected)
