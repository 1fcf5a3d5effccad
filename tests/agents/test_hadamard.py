"""Matrix memories with a decay per element against their equations, one environment, group and step at a time."""

import pytest
import torch

from engram.agents.cores.fast.hadamard import remember
from engram.base import compiled
from unrolls import random_inputs

pytestmark = pytest.mark.skipif(not compiled.enabled, reason="ENGRAM_COMPILED=0")

STEPS, BATCH, GROUPS, ROWS, COLUMNS, READS = 11, 10, 2, 6, 3, 2
DECAYS = {
    "exp": lambda P: torch.exp(-P),
    "tanh": lambda P: 1 + torch.tanh(P),
    "complement": lambda P: 1 - P,
}


def problem(constant):
    generator = torch.Generator().manual_seed(3)
    row, column = (STEPS, BATCH, GROUPS, ROWS), (STEPS, BATCH, GROUPS, COLUMNS)
    shapes = [column, (GROUPS, ROWS, COLUMNS) if constant else row, column, row, row, (BATCH, GROUPS, ROWS, COLUMNS)]
    random = [torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    _, reset = random_inputs(1, STEPS, BATCH)
    return [x.requires_grad_() for x in random], reset


def by_steps(form, a, b, u, w, q, start, reset, cut):
    reads, ends = [], []
    for e in range(BATCH):
        M, read = start[e], []
        for t in range(STEPS):
            if cut and t and t % cut == 0:
                M = M.detach()
            if reset[t, e]:
                M = torch.zeros_like(M)
            P = (b if b.dim() == 3 else b[t, e, :, :, None]) * a[t, e, :, None]
            M = DECAYS[form](P) * M + w[t, e, :, :, None] * u[t, e, :, None]
            read.append((q[t, e, :, :, None] * M).reshape(GROUPS, READS, -1, COLUMNS).sum(2))
        reads.append(torch.stack(read))
        ends.append(M)
    return torch.stack(reads, 1), torch.stack(ends)


def values_and_gradients(result, sources):
    generator = torch.Generator().manual_seed(4)
    total = sum((x * torch.randn(x.shape, generator=generator, dtype=x.dtype)).sum() for x in result)
    return *result, *torch.autograd.grad(total, [x for x in sources if x.requires_grad])


@pytest.mark.parametrize("form", DECAYS)
@pytest.mark.parametrize("constant", [False, True, None])
def test_remember_is_the_loop_with_its_gradients(form, constant):
    sources, reset = problem(constant)
    a, b, u, w, q, start = sources
    if constant is None:
        b = sources[1] = torch.ones(b.shape, dtype=b.dtype)
    for cut in (None, 1, 4):
        result = remember(form, (a, None if constant is None else b), (u, w), q, reset, start, cut, READS)
        ours = values_and_gradients(result, sources)
        slow = values_and_gradients(by_steps(form, *sources, reset, cut), sources)
        for mine, wanted in zip(ours, slow, strict=True):
            torch.testing.assert_close(mine, wanted, atol=1e-10, rtol=1e-10)


def test_remember_is_exact_in_single_precision_for_slow_and_for_fast_decays():
    generator = torch.Generator().manual_seed(5)
    rates = torch.logspace(-6, 3, 64).expand(1, 1, 64)
    a, u = torch.ones(200, 1, 1, 64), torch.rand(200, 1, 1, 64, generator=generator)
    one, start, reset = torch.ones(200, 1, 1, 1), torch.zeros(1, 1, 1, 64), torch.zeros(200, 1, dtype=torch.bool)
    single, _ = remember("exp", (a, rates), (u, one), one, reset, start)
    double, _ = remember(
        "exp", (a.double(), rates.double()), (u.double(), one.double()), one.double(), reset, start.double()
    )
    torch.testing.assert_close(single.double(), double, atol=0, rtol=2e-5)


def test_remember_forgets_nan_at_a_reset():
    (a, b, u, w, q, start), _ = problem(False)
    reset = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    reset[5] = True
    u = torch.where(torch.arange(STEPS).reshape(-1, 1, 1, 1) == 2, torch.nan, u.detach())
    read, memory = remember("tanh", (a, b), (u, w), q, reset, start)
    assert bool(read[2:5].isnan().all())
    assert bool(read[5:].isfinite().all())
    assert bool(memory.isfinite().all())


def test_a_tensor_of_another_shape_is_refused():
    (a, b, u, w, q, start), reset = problem(False)
    with pytest.raises(ValueError, match="matrix memory: start is"):
        remember("tanh", (a, b), (u, w), q, reset, start[:, :, 1:])
