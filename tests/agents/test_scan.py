"""The scan over time against the recurrence written step by step: values, gradients, resets, cuts, nan."""

import pytest
import torch

from engram.agents.cores.fast.scan import can_compile, scan_compiled
from engram.agents.cores.linear import stack as scans
from engram.agents.cores.linear.stack import scan, scan_blocks

BATCH, WIDTH = 3, 2
WAYS = pytest.mark.parametrize("way", [scan_blocks, scan_compiled], ids=["blocks", "compiled"])
KINDS = pytest.mark.parametrize("kind", ["real", "complex", "constant"])


def problem(kind, steps, dtype=torch.float64):
    torch.manual_seed(steps)
    complex_type = {torch.float64: torch.complex128, torch.float32: torch.complex64}[dtype]
    number = dtype if kind == "real" else complex_type
    shape = (1, 1, WIDTH) if kind == "constant" else (steps, BATCH, WIDTH)
    decay = torch.rand(shape, dtype=dtype) if kind == "real" else 0.99 * torch.randn(shape, dtype=number).sgn()
    inputs = torch.randn(steps, BATCH, WIDTH, dtype=number)
    reset = torch.rand(steps, BATCH) < 0.05
    reset[:, 0] = False
    reset[0, 1] = reset[-1, 2] = True
    tensors = decay, inputs, torch.randn(BATCH, WIDTH, dtype=number)
    return *(tensor.requires_grad_() for tensor in tensors), reset


def by_steps(decay, inputs, reset, start, bptt_length=None):
    h, states = start, []
    for t in range(len(inputs)):
        if bptt_length is not None and t > 0 and t % bptt_length == 0:
            h = h.detach()
        h = torch.where(reset[t].unsqueeze(1), 0, h)
        h = decay[min(t, len(decay) - 1)] * h + inputs[t]
        states.append(h)
    return torch.stack(states)


def outputs_and_gradients(way, decay, inputs, start, reset, bptt_length):
    states = way(decay, inputs, reset, start, bptt_length)
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = (states.real * weights).sum() + (torch.view_as_real(states)[..., 1].sum() if states.is_complex() else 0)
    return states, *torch.autograd.grad(total, (decay, inputs, start))


@WAYS
@KINDS
@pytest.mark.parametrize("steps", [1, 7, 40, 130])
def test_scan_is_the_loop_with_its_gradients(way, kind, steps):
    for bptt_length in (None, 1, 4, 30, 200):
        compare_with_the_loop(way, kind, steps, bptt_length)


def compare_with_the_loop(way, kind, steps, bptt_length):
    decay, inputs, start, reset = problem(kind, steps)
    seen = outputs_and_gradients(way, decay, inputs, start, reset, bptt_length)
    wanted = outputs_and_gradients(by_steps, decay, inputs, start, reset, bptt_length)
    for ours, slow in zip(seen, wanted, strict=True):
        torch.testing.assert_close(ours, slow, atol=1e-10, rtol=1e-10)


@pytest.mark.integration
@WAYS
@KINDS
def test_three_hundred_steps_in_float32_agree_to_1e_5(way, kind):
    decay, inputs, start, reset = problem(kind, 300, torch.float32)
    seen, wanted = way(decay, inputs, reset, start), by_steps(decay, inputs, reset, start)
    torch.testing.assert_close(seen, wanted, atol=1e-5 * wanted.abs().max().item(), rtol=0)


@WAYS
@KINDS
def test_nan_before_a_reset_stays_there(way, kind):
    decay, inputs, start, reset = problem(kind, 60)
    reset[:] = False
    reset[31, 1] = True
    clean = way(decay, inputs, reset, start)
    with torch.no_grad():
        inputs[20, 1] = torch.nan
        start[1] = torch.nan
        if kind == "real":
            decay[30, 1] = torch.nan
    spoilt = way(decay, inputs, reset, start)
    torch.testing.assert_close(spoilt[31:], clean[31:])
    torch.testing.assert_close(spoilt[:, [0, 2]], clean[:, [0, 2]])
    assert spoilt[:31, 1].isnan().all()


def test_compiled_loops_are_used_on_a_cpu_and_can_be_switched_off(monkeypatch):
    decay, inputs, start, reset = problem("real", 30)
    assert can_compile(inputs)
    assert "_Scan" in type(scan(decay, inputs, reset, start).grad_fn.next_functions[0][0]).__name__
    monkeypatch.setattr(scans, "can_compile", lambda _: False)
    plain = scan(decay, inputs, reset, start)
    assert "_Scan" not in str(plain.grad_fn.next_functions)
    (grad,) = torch.autograd.grad(plain.sum(), inputs, create_graph=True)
    assert torch.autograd.grad(grad.sum(), decay)[0].any()  # a second derivative


def test_features_may_have_several_axes():
    decay, inputs = torch.rand(9, 2, 3, 4), torch.randn(9, 2, 3, 4)
    reset, start = torch.zeros(9, 2, dtype=torch.bool), torch.randn(2, 3, 4)
    flat = scan(decay.flatten(2), inputs.flatten(2), reset, start.flatten(1))
    torch.testing.assert_close(scan(decay, inputs, reset, start).flatten(2), flat)
