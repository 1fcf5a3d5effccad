"""Parts of every compiled route: when it may stand in for a core's statement, groups of environments, matrix gradients.

Small operations of a memory core cost more in starting them, and in bringing their numbers from memory, than in
computing. Compiled loops do many of them in one pass. Where they cannot work the statement runs: on a GPU, in half
precision, under torch.compile and torch.func, for a core whose parts have hooks or parametrizations or were exchanged.
`ENGRAM_COMPILED=0` in the environment switches all of them off.
"""

import os
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ....base.compiled import JIT
from ....base.processes import on_intel
from ... import bf16
from ...threads import share
from ..contract.conditions import touched, under_torch_func
from .blas import gemm
from .elementwise import Array

enabled = JIT and os.environ.get("ENGRAM_COMPILED", "1") != "0"
"""Whether compiled functions are used where they can be."""

GROUP = 8 if on_intel() else 16
"""Environments of a batch that are learned from at once: so few that two threads can share a batch. MKL's products are
as fast for few as for many; with SciPy's BLAS groups of 8 take a third longer than one of 32, groups of 16 an
eighth."""
WIDEST_GROUP = 64
"""Of `group_size`."""
GROUP_OF_A_STEP = 128
"""Environments that act at once: a single step reads the weights for every group again."""
ROWS_AT_ONCE = 256
"""Outputs of a matrix whose gradient is one piece of work: two threads share a batch's best when pieces are alike."""


def suits(tensor: Tensor) -> bool:
    """Whether compiled functions can work on such a tensor here and now."""
    return (
        enabled
        and not torch.compiler.is_compiling()
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.float64)
        and not under_torch_func()
    )


def stands_for(core: nn.Module, inputs: Tensor) -> bool:
    """Whether a compiled route gives for this core what its own modules would give."""
    return suits(inputs) and _uniform(core, inputs.dtype) and not touched(core)


def _uniform(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether all parameters are of one type and on the CPU."""
    own = vars(module)
    for parameter in own["_parameters"].values():
        if parameter is not None and not (parameter.dtype == dtype and parameter.device.type == "cpu"):
            return False
    return all(part is None or _uniform(part, dtype) for part in own["_modules"].values())


def refuse_second_derivative() -> None:
    """Raises RuntimeError in the backward pass of a graph that shall be differentiated again."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a compiled route has no second derivative (create_graph=True); with ENGRAM_COMPILED=0 the core has one"
        )


def check(route: str, like: Tensor, **expected: tuple[Tensor, Sequence[int]]) -> None:
    """Raise ValueError unless tensors have their shapes, the type of `like` (`reset`: bool), and are on the CPU.

    Compiled functions take addresses: with another shape or type they would read and write foreign memory.
    """
    for name, (tensor, shape) in expected.items():
        dtype = torch.bool if name == "reset" else like.dtype
        if tensor.dtype != dtype or tensor.shape != tuple(shape) or tensor.device.type != "cpu":
            actual = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
            raise ValueError(f"{route}: {name} is {actual}; expected {dtype} {list(shape)} on cpu")


def arrays(*tensors: Tensor) -> list[Array]:
    """The same memory as numpy sees it; a tensor with gaps is copied."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


def group_size(batch: int) -> int:
    """Environments of a group where each has one line in a product: half of a wide batch, at most 64.

    SciPy's BLAS is 1.6 times as fast with 64 as with 16. The size depends on the batch alone, so that results do not
    depend on the number of threads.
    """
    return GROUP if on_intel() else max(GROUP, min(batch // 2, WIDEST_GROUP))


def by_groups(work: Callable[[int, int, int], None], batch: int, width: int) -> None:
    """work(number, first, last) for groups of `width` environments, each by whichever thread is free."""

    def run(number: int) -> None:
        work(number, number * width, min((number + 1) * width, batch))
        bf16.release()

    share(run, groups(batch, width))


def groups(batch: int, width: int) -> int:
    """How many groups of `width` environments there are."""
    return -(-batch // width)


def routine(dtype: torch.dtype, weight: Tensor) -> int:
    """The routine of a compiled loop for `multiply`: that of bfloat16 factors where its recurrent weight is for it."""
    rounds = bf16.active() and dtype == torch.float32 and bf16.large(weight)
    return -bf16.routine() if rounds else gemm(dtype)


def turned(matrices: Array) -> Array:
    """[..., outputs, inputs] -> [..., inputs, outputs], without gaps."""
    return np.ascontiguousarray(matrices.swapaxes(-1, -2))


def packed(*weights: Tensor, turn: bool = False) -> Array:
    """Weights [outputs, inputs] as a routine of bfloat16 factors multiplies by them; with `turn` for the gradient.

    Several of one shape are stacked.
    """
    if not weights[0].numel():  # a part that this core does not have
        return weights[0].detach().numpy()
    packed_weights = [(bf16.packed(weight.t()) if turn else bf16.kept(weight)).numpy() for weight in weights]
    return packed_weights[0] if len(packed_weights) == 1 else np.stack(packed_weights)


def matrix_gradients(pairs: Sequence[tuple[Array, Array]], rounded: bool = False) -> list[Tensor]:
    """Gradients of W [O, I] in products y = x W^T, each given as the gradient of y [..., O] and x [..., I].

    With `rounded` the factors are bfloat16.
    """
    rows = [tuple(torch.from_numpy(part.reshape(-1, part.shape[-1])) for part in pair) for pair in pairs]
    if rounded:
        return [bf16.product(grad.t(), x.t()) for grad, x in rows]
    results = [grad.new_empty(grad.shape[1], x.shape[1]) for grad, x in rows]
    pieces = [
        (grad[:, start : start + ROWS_AT_ONCE].t(), x, result[start : start + ROWS_AT_ONCE])
        for (grad, x), result in zip(rows, results, strict=True)
        for start in range(0, len(result), ROWS_AT_ONCE)
    ]

    def multiply(turn: int) -> None:
        grad, x, out = pieces[turn]
        torch.mm(grad, x, out=out)

    share(multiply, len(pieces))
    return results
