"""Parts of every compiled route: conditions of its use, groups of environments, matrix gradients.

Compiled loops perform many small operations in one pass. The equations run in torch instead on a GPU, in half
precision, under torch.compile and torch.func, for a core whose modules have hooks or parametrizations or were replaced,
and with `ENGRAM_COMPILED=0`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....base import compiled
from ....base.processes import on_intel
from ...threads import share
from ..core import touched, under_torch_func
from . import bf16
from .blas import gemm, release
from .elementwise import Array

GROUP = 8 if on_intel() else 16
"""Environments per group in the learner: few enough for two threads to share a batch. MKL is as fast for few as for
many; with SciPy's BLAS, groups of 8 take a third longer than one of 32, groups of 16 an eighth longer."""
GROUP_OF_A_STEP = 128  # Environments per group in acting: a single step reads the weights again for every group
ROWS_AT_ONCE = 256  # Rows of a matrix's gradient per piece of work: threads share best if pieces are similar in size.


def suits(tensor: Tensor) -> bool:
    """Whether compiled functions support this tensor in the current context."""
    return (
        compiled.enabled
        and not torch.compiler.is_compiling()
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.float64)
        and not under_torch_func()
    )


def stands_for(core: nn.Module, inputs: Tensor) -> bool:
    """Whether a compiled route is equivalent to this core's own modules."""
    alike = (weight.dtype == inputs.dtype and weight.device.type == "cpu" for weight in core.parameters())
    return suits(inputs) and not touched(core) and all(alike)


def refuse_second_derivative() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a compiled route has no second derivative (create_graph=True); with ENGRAM_COMPILED=0 the core has one"
        )


def check(route: str, like: Tensor, **expected: tuple[Tensor, Sequence[int]]) -> None:
    """Raise ValueError unless tensors have these shapes and the type of `like` (`reset`: bool), and are on the CPU.
    Compiled functions take addresses: with another shape or type, they would access invalid memory."""
    for name, (tensor, shape) in expected.items():
        dtype = torch.bool if name == "reset" else like.dtype
        if tensor.dtype != dtype or tensor.shape != tuple(shape) or tensor.device.type != "cpu":
            actual = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
            raise ValueError(f"{route}: {name} is {actual}; expected {dtype} {list(shape)} on cpu")


def arrays(*tensors: Tensor) -> list[Array]:
    """Return views of tensors as NumPy arrays; noncontiguous tensors are copied."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


def group_size(batch: int) -> int:
    """Return the number of environments per group if each has one row in a multiplication: half of a wide batch, up to
    64, for SciPy's BLAS, which is then 1.6 times as fast as with 16."""
    return GROUP if on_intel() else max(GROUP, min(batch // 2, 64))


def by_groups(work: Callable[[int, int, int], None], batch: int, width: int) -> None:
    """Run work(index, first, last) for groups of `width` environments, each on the first free thread."""

    def run(index: int) -> None:
        work(index, index * width, min((index + 1) * width, batch))
        release()

    if batch <= width:  # without the cost of `share`, which acting would notice
        run(0)
    else:
        share(run, groups(batch, width))


def groups(batch: int, width: int) -> int:
    return -(-batch // width)


def routine(dtype: torch.dtype, weight: Tensor) -> int:
    """Return a compiled loop's routine for `multiply`: with bfloat16 factors if the recurrent weight is suitable."""
    rounds = bf16.active() and dtype == torch.float32 and bf16.large(weight)
    return -bf16.routine() if rounds else gemm(dtype)


def factor(routine: int, weight: Tensor, turned: bool = False, adjoint: bool = False) -> Array:
    """Return weights [..., outputs, inputs] in a layout for `multiply`: packed if the routine rounds factors, for the
    forward pass or for the `adjoint`; otherwise unchanged, or `turned`, [..., inputs, outputs]."""
    (matrix,) = arrays(weight)
    if routine >= 0:
        return np.ascontiguousarray(matrix.swapaxes(-1, -2)) if turned else matrix
    if not weight.numel():  # a part that this core does not have
        return matrix
    return (bf16.packed(weight.mT) if adjoint else bf16.once(bf16.packed, weight)).numpy()


def arranged(leaves: Any, matrices: Sequence[str], routine: int, turned: bool = False, adjoint: bool = False) -> Any:
    """Return a tuple of tensors as arrays, the named ones in the layout for the routine, as in `factor`."""
    factors = {name: factor(routine, getattr(leaves, name), turned, adjoint) for name in matrices}
    return type(leaves)(*arrays(*leaves))._replace(**factors)


def matrix_gradients(pairs: Sequence[tuple[Array, Array]], rounded: bool = False) -> list[Tensor]:
    """Return the gradient of W [O, I] in y = x W^T for each pair of the gradient of y [..., O] and x [..., I]. With
    `rounded`, the factors are bfloat16."""
    rows = [tuple(torch.from_numpy(part.reshape(-1, part.shape[-1])) for part in pair) for pair in pairs]
    if rounded:
        return [bf16.product(grad.t(), x.t()) for grad, x in rows]
    results = [grad.new_empty(grad.shape[1], x.shape[1]) for grad, x in rows]
    pieces = [
        partial(torch.mm, grad[:, start : start + ROWS_AT_ONCE].t(), x, out=result[start : start + ROWS_AT_ONCE])
        for (grad, x), result in zip(rows, results, strict=True)
        for start in range(0, len(result), ROWS_AT_ONCE)
    ]
    share(lambda index: pieces[index](), len(pieces))
    return results
