"""Gradients reach the optimizer in the memory layout of their parameters."""

import pytest
import torch
from torch import nn

from engram.learners.checkpoints import pack, unpack
from engram.learners.optimizers import clip_global_norm, make_optimizer, set_gradients

SHAPE = (4, 3, 2, 2)


def fused(weights: torch.Tensor) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    parameter = nn.Parameter(weights.clone())
    return parameter, make_optimizer("adam", [parameter], lr=1e-2, eps=1e-8, decay=0, momentum=0, betas=(0.9, 0.999))


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
    with pytest.raises(AssertionError, match="set_gradients"):
        optimizer.step()
    assert torch.equal(parameter, before)


def test_strides_of_dimensions_with_one_element_do_not_matter() -> None:
    parameter, optimizer = fused(torch.randn(4, 1, 1))
    parameter.grad = torch.randn(4, 1, 1).as_strided((4, 1, 1), (1, 7, 9))
    optimizer.step()


def test_parameters_that_are_added_up_are_clipped_once() -> None:
    """`torch.autograd.grad` returns one tensor for both, as for the two biases of an LSTM."""
    ours, theirs = ([nn.Parameter(torch.ones(3)) for _ in range(2)] for _ in range(2))
    set_gradients(ours, torch.autograd.grad((10 * (ours[0] + ours[1])).sum(), ours))
    (10 * (theirs[0] + theirs[1])).sum().backward()
    assert clip_global_norm(ours, 1.0) == clip_global_norm(theirs, 1.0)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_parameters_that_are_joined_and_added_up_are_clipped_once() -> None:
    """The gradients of the joined ones are views of that of the other."""

    def made() -> list[nn.Parameter]:
        return [nn.Parameter(torch.ones(size)) for size in (4, 2, 2)]

    def loss(p: list[nn.Parameter]) -> torch.Tensor:
        return (10 * (p[0] + torch.cat(p[1:]))).sum()

    ours, theirs = made(), made()
    set_gradients(ours, torch.autograd.grad(loss(ours), ours))
    loss(theirs).backward()
    assert clip_global_norm(ours, 1.0) == clip_global_norm(theirs, 1.0)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize(
    "transpose", [lambda x: x.mT.contiguous().mT, lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1)]
)
def test_moments_from_a_checkpoint_take_the_layout_of_their_parameters(transpose) -> None:
    """A file has contiguous tensors."""
    torch.manual_seed(0)
    weights, gradients = transpose(torch.randn(SHAPE)), torch.randn(2, *SHAPE)
    (whole, one), (resumed, other) = fused(weights), fused(weights)
    assert not whole.is_contiguous()
    for gradient in gradients:
        set_gradients([whole], [gradient])
        one.step()
    set_gradients([resumed], [gradients[0]])
    other.step()
    after = make_optimizer("adam", [resumed], lr=1e-2, eps=1e-8, decay=0, momentum=0, betas=(0.9, 0.999))
    after.load_state_dict(unpack(*pack(other.state_dict())))
    set_gradients([resumed], [gradients[1]])
    after.step()
    assert torch.equal(whole, resumed)
