"""Products inside compiled functions: every library, type and shape."""

import numpy as np
import pytest
import torch

from engram.agents.cores.fast import blas
from engram.base.compiled import compiled


@compiled()
def product(routine, x, weight, transpose, out):
    blas.multiply(routine, x, weight, transpose, out)


@pytest.fixture(params=[True, False], ids=["intel", "other"])
def processor(request, monkeypatch):
    monkeypatch.setattr(blas, "on_intel", lambda: request.param)
    blas.gemm.cache_clear()
    yield request.param
    blas.gemm.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (2, 3, 5), (16, 256, 768), (7, 300, 2)])
def test_products_are_numpys(processor, dtype, transpose, rows, inner, columns):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, inner)).astype(str(dtype).removeprefix("torch."))
    weight = rng.normal(size=(inner, columns)).astype(x.dtype)
    out = np.full((rows, columns), np.nan, x.dtype)
    product(blas.gemm(dtype), x, np.ascontiguousarray(weight.T) if transpose else weight, transpose, out)
    np.testing.assert_allclose(out, x @ weight, atol=1e-4 if dtype == torch.float32 else 1e-12)


def test_other_processors_have_another_library(monkeypatch):
    if not torch.backends.mkl.is_available():
        pytest.skip("one library only")
    found = set()
    for intel in (True, False):
        monkeypatch.setattr(blas, "on_intel", lambda intel=intel: intel)
        blas.gemm.cache_clear()
        found.add(blas.gemm(torch.float32))
    blas.gemm.cache_clear()
    assert len(found) == 2
