"""Matrix multiplications by torch's fastest route on this machine, equal to torch's own up to rounding.

On a CPU torch multiplies float32 matrices with MKL, which uses half of the vector width on CPUs other than Intel's,
while oneDNN uses all of it. For other devices, other types and small matrices, torch's own operations run.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base.compiled import compiled, enabled
from ..base.processes import on_intel
from .cores.core import under_torch_func
from .cores.fast import bf16, routes
from .cores.fast.blas import multiply, release
from .cores.fast.elementwise import Array, add
from .threads import share

MIN_MULTIPLICATIONS = 2**20  # Smaller multiplications use MKL: a oneDNN call costs about ten microseconds more.
PIECES_FROM = 2**26  # Number of scalar multiplications from which threads share a matrix multiplication
PIECE = 128  # Smallest number of rows per piece; smaller pieces spend more time reading the weights.
MOST_PIECES = 4

_onednn: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
prefer_onednn = _onednn is not None and not on_intel()  # Whether oneDNN computes matrix multiplications


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in], weight [out, in], bias [out] -> x weight^T + bias [..., out]. Differentiable to any order."""
    rounded = bf16.suits(x, weight)
    if not rounded and not _is_large(x, weight):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    # With gradients disabled, `apply` records nothing, so the same call serves acting and learning.
    y: Tensor = _Linear.apply(rounded, rows, weight, bias)  # pyright: ignore
    return y.view(*x.shape[:-1], weight.shape[0])


linear = _linear if enabled else F.linear  # without compiled code, torch's own


class Linear(nn.Linear):
    """`torch.nn.Linear` computed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def _is_large(x: Tensor, weight: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()  # first: a traced size must not be compared with a constant
        and x.numel() * weight.shape[0] >= MIN_MULTIPLICATIONS
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not under_torch_func()
    )


def _dense(matrix: Tensor) -> bool:
    """Whether a matrix or its transpose is contiguous: for a slice of a wider matrix, oneDNN is 100 times slower."""
    return matrix.is_contiguous() or matrix.t().is_contiguous()


class _Linear(torch.autograd.Function):
    """Large matrix multiplication whose gradient uses `linear` and is therefore differentiable."""

    @staticmethod
    def forward(ctx: Any, rounded: bool, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.rounded = rounded
        return (bf16.product if rounded else product)(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        rows, weight = ctx.saved_tensors
        _, for_rows, for_weight, for_bias = ctx.needs_input_grad
        second = torch.is_grad_enabled()  # other threads record no gradients
        multiply = _linear if second else bf16.product if ctx.rounded else _product

        def work(turn: int) -> Tensor | None:
            if turn == 0:
                return multiply(grad, weight.t(), None) if for_rows else None
            return multiply(grad.t(), rows.t(), None) if for_weight else None

        # One multiplication per CPU core; `product` would split each among cores and run them one after the other.
        grads = [work(0), work(1)] if second else share(work, 2)
        return None, *grads, grad.sum(0) if for_bias else None


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [R, in], weight [out, in], bias [out] -> x weight^T + bias [R, out]; no gradient."""
    if not _is_large(x, weight):
        return F.linear(x, weight, bias)
    pieces = min(MOST_PIECES, len(x) // PIECE)
    if pieces < 2 or x.numel() * weight.shape[0] < PIECES_FROM:
        return _product(x, weight, bias)
    with torch.inference_mode(False):  # other threads are not in inference mode and must not write to inference tensors
        out = x.new_empty(len(x), len(weight))
    parts = list(zip(x.chunk(pieces), out.chunk(pieces), strict=True))
    share(lambda turn: _product(parts[turn][0], weight, bias, parts[turn][1]), len(parts))
    return out


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    suits = prefer_onednn and x.dtype == weight.dtype == torch.float32
    if suits and torch.backends.mkldnn.enabled and _dense(weight) and _dense(x):  # pyright: ignore
        y: Tensor = _onednn(x, weight, bias, "none", [], "")
        return y if out is None else out.copy_(y)
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out)


class Affine:
    """x W^T + b [B, J] of a layer [J, I] for x [B, I], for acting on a CPU, with W packed once; no gradient."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._routine, self._shape = routes.routine(weight.dtype, weight), weight.shape[1:]
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        self._weight, (self._bias,) = routes.factor(self._routine, weight), routes.arrays(bias)

    def __call__(self, x: Array) -> Array:
        if x.shape[1:] != self._shape or x.dtype != self._bias.dtype:
            raise ValueError(f"inputs are {x.dtype} {x.shape}; expected {self._bias.dtype} of {self._shape[0]} values")
        x, out = np.ascontiguousarray(x), np.empty((len(x), len(self._bias)), x.dtype)
        _affine(self._routine, x, self._weight, self._bias, out)
        if self._routine < 0:
            release()
        return out


@compiled()
def _affine(gemm: int, x: Array, weight: Array, bias: Array, out: Array) -> None:
    multiply(gemm, x, weight, True, out)
    for b in range(len(out)):
        add(out[b], bias)
