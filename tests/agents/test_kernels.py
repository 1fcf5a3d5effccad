"""The fast routes equal torch's own operations."""

import pytest
import torch
from torch.nn import functional

from engram.agents import kernels, threads

SIZES = [(64, 96, 200), (3, 4, 5)]
"""Rows, inputs, outputs: above and below the size from which a product takes the fast route."""


@pytest.fixture(autouse=True, params=["oneDNN", "MKL"])
def library(request, monkeypatch):
    if request.param == "oneDNN" and not torch.backends.mkldnn.is_available():
        pytest.skip("torch without oneDNN")
    monkeypatch.setattr(kernels, "prefer_onednn", request.param == "oneDNN")


def tensors(rows, inputs, outputs, dtype=torch.float32):
    torch.manual_seed(0)
    shapes = ((2, rows // 2 or 1, inputs), (outputs, inputs), (outputs,))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_and_its_gradients_are_torchs(size, with_bias):
    x, weight, bias = tensors(*size)
    results = []
    for linear in (kernels.linear, functional.linear):
        y = linear(x, weight, bias if with_bias else None)
        grads = torch.autograd.grad(y.square().sum(), [x, weight, bias], materialize_grads=True)
        results.append([y, *grads])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6 * b.abs().max().item(), rtol=1e-5)


def test_linear_of_transposed_and_strided_tensors():
    x, weight, _ = (t.detach() for t in tensors(*SIZES[0]))
    turned, strided = weight.t().contiguous().t(), torch.stack([x, x], -1)[..., 0]
    torch.testing.assert_close(kernels.linear(strided, turned), functional.linear(x, weight), atol=1e-4, rtol=0)


def test_linear_has_second_derivatives():
    x, weight, bias = tensors(*SIZES[0])
    results = []
    for linear in (kernels.linear, functional.linear):
        (grad,) = torch.autograd.grad(linear(x, weight, bias).pow(3).mean(), x, create_graph=True)
        results.append(torch.autograd.grad(grad.square().sum(), [x, weight]))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * b.abs().max().item(), rtol=1e-4)


@pytest.mark.filterwarnings("ignore:TF32")
def test_large_products_take_the_fast_route_and_others_do_not():
    large, small = (tensors(*size) for size in SIZES)
    node = "_Linear"
    fast = kernels.linear(*large)
    assert node in type(fast.grad_fn.next_functions[0][0]).__name__
    assert node not in type(kernels.linear(*small).grad_fn).__name__
    with torch.backends.mkldnn.flags(enabled=False):
        torch.testing.assert_close(kernels.linear(*large), fast, atol=1e-4, rtol=0)
    with torch.autocast("cpu"):
        assert kernels.linear(*large).dtype == torch.bfloat16
    double = [t.double() for t in large]
    assert kernels.linear(*double).dtype == torch.float64


def test_gradients_made_by_two_threads_are_the_same_to_the_bit(monkeypatch):
    monkeypatch.setattr(threads, "num_cores", lambda: 2)
    results = []
    for count in (1, 2):
        threads.use_threads(count)
        x, weight, bias = tensors(*SIZES[0])
        results.append(torch.autograd.grad(kernels.linear(x, weight, bias).square().sum(), [x, weight, bias]))
    threads.use_threads(1)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_linear_layer_is_linear():
    layer = kernels.Linear(96, 200)
    x = torch.randn(64, 96)
    torch.testing.assert_close(layer(x), functional.linear(x, layer.weight, layer.bias), atol=1e-5, rtol=0)


@pytest.mark.integration
@pytest.mark.parametrize("rows", [1, 2, 300])
def test_products_of_few_rows_and_wide_weights(rows):
    x, weight, bias = torch.randn(rows, 4096), torch.randn(2**14, 4096), 100 * torch.randn(2**14)
    torch.testing.assert_close(kernels.linear(x, weight), functional.linear(x, weight), atol=2e-3, rtol=0)
    torch.testing.assert_close(kernels.linear(x, weight, bias), functional.linear(x, weight, bias), atol=2e-3, rtol=0)


def test_a_product_in_pieces_while_acting_is_that_of_one_thread():
    """Other threads than the one that acts are not in torch's inference mode."""
    torch.manual_seed(0)
    x, weight = torch.randn(4 * kernels.PIECE, 512), torch.randn(512, 512)
    assert x.numel() * len(weight) >= kernels.PIECES_FROM
    found = []
    for count in (1, 2):
        threads.use_threads(count)
        with torch.inference_mode():
            found += [kernels.linear(x * 1.0, weight) for _ in range(8)]
    threads.use_threads(1)
    assert all(torch.equal(each, found[0]) for each in found)
