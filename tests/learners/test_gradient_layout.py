"""Gradients reach the optimizer in the memory layout of their parameters."""

import pytest
import torch
from engram.learners.optimisers import make_optimiser, set_gradients
from torch import nn

SHAPE = (4, 3, 2, 2)


def fused(weights: torch.Tensor) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    parameter = nn.Parameter(weights.clone())
    return parameter, make_optimiser("adam", [parameter], lr=1e-2, eps=1e-8, decay=0, momentum=0, betas=(0.9, 0.999))


def test_a_channels_last_gradient_makes_the_step_of_a_contiguous_one() -> None:
    torch.manual_seed(0)
    weights = torch.randn(SHAPE)
    ours, optimizer = fused(weights)
    theirs = nn.Parameter(weights.clone())
    plain = torch.optim.Adam([theirs], lr=1e-2, fused=False, foreach=False)
    for _ in range(3):
        gradient = torch.randn(SHAPE)
        set_gradients([ours], [gradient.contiguous(memory_format=torch.channels_last)])
        optimizer.step()
        theirs.grad = gradient
        plain.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)


def test_adam_refuses_a_gradient_in_another_layout() -> None:
    parameter, optimizer = fused(torch.randn(SHAPE))
    before = parameter.detach().clone()
    parameter.grad = torch.randn(SHAPE).contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="strides"):
        optimizer.step()
    assert torch.equal(parameter, before)


def test_strides_of_dimensions_with_one_element_do_not_matter() -> None:
    parameter, optimizer = fused(torch.randn(4, 1, 1))
    parameter.grad = torch.randn(4, 1, 1).as_strided((4, 1, 1), (1, 7, 9))
    optimizer.step()
