"""Parts that compiled unrolls share: a batch's environments in groups, gradients of matrices after the loop."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ....base.processes import on_intel
from ...threads import share
from .arrays import Array

GROUP = 8 if on_intel() else 16
"""Environments of a batch that are learnt from at once: so few that two threads can share a batch. MKL's products are
as fast for few as for many; with SciPy's BLAS groups of 8 take a third longer than one of 32, groups of 16 an
eighth."""
WIDEST_GROUP = 64
"""Of `group_size`."""
GROUP_OF_A_STEP = 128
"""Environments that act at once: a single step reads the weights for every group anew."""
ROWS_AT_ONCE = 256
"""Outputs of a matrix whose gradient is one piece of work: two threads share a batch's best when pieces are alike."""


def group_size(batch: int) -> int:
    """Environments of a group where each has one line in a product: half of a wide batch, at most 64.

    SciPy's BLAS is 1.6 times as fast with 64 as with 16. The size depends on the batch alone, so that results do not
    depend on the number of threads.
    """
    return GROUP if on_intel() else max(GROUP, min(batch // 2, WIDEST_GROUP))


def by_groups(work: Callable[[int, int, int], None], batch: int, width: int) -> None:
    """work(number, first, last) for groups of `width` environments, each by whichever thread is free."""
    share(lambda number: work(number, number * width, min((number + 1) * width, batch)), groups(batch, width))


def groups(batch: int, width: int) -> int:
    """How many groups of `width` environments there are."""
    return -(-batch // width)


def turned(matrices: Array) -> Array:
    """[..., outputs, inputs] -> [..., inputs, outputs], without gaps."""
    return np.ascontiguousarray(matrices.swapaxes(-1, -2))


def matrix_gradients(pairs: Sequence[tuple[Array, Array]]) -> list[Tensor]:
    """Gradients of W [O, I] in products y = x W^T, each given as the gradient of y [..., O] and x [..., I]."""
    rows = [tuple(torch.from_numpy(part.reshape(-1, part.shape[-1])) for part in pair) for pair in pairs]
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
