"""The LSTM's unroll and its gradient, compiled, for some environments of a batch on a CPU.

The equations are in `lstm.LSTM`; shapes are those of `arrays.py`.
"""

from .....base.compiled import compiled
from ..blas import multiply
from ..elementwise import Array, add, gradient_ends, state_before
from .arrays import Gradients, Inputs, Record
from .cell import cell, cell_backward


@compiled("reassoc", "nsz")
def forward(
    gemm: int,
    first: int,
    last: int,
    inputs: Inputs,
    weight: Array,
    turned: bool,
    record: Record,
    out: Array,
    cells: Array,
) -> None:
    """All steps of environments `first` to `last`: their h [T, B, H] in `out`, their last c [B, H] in `cells`.

    The weight is [4 H, H], with `turned` [H, 4 H]. For acting, the record has one step and the
    environments of one group, and is reused.
    """
    start = first % record.h.shape[1]
    shift, end = first - start, start + last - first
    cells[first:last] = inputs.c[first:last]
    for t in range(len(out)):
        s = t % len(record.h)
        h, c, gates, squashed = record.h[s], record.c[s], record.gates[s], record.inner[s]
        for b in range(start, end):
            state_before(inputs.reset, inputs.h, out, t, b + shift, h[b])
            if inputs.reset[t, b + shift]:
                c[b, :] = 0
            else:
                c[b, :] = cells[b + shift]
        multiply(gemm, h[start:end], weight, not turned, gates[start:end])
        for b in range(start, end):
            add(gates[b], inputs.gates[t, b + shift])
            cell(gates[b], c[b], squashed[b], cells[b + shift], out[t, b + shift])


@compiled("reassoc", "nsz")
def backward(
    gemm: int,
    first: int,
    last: int,
    cut: int,
    reset: Array,
    weight: Array,
    record: Record,
    grad_out: Array,
    grads: Gradients,
) -> None:
    """The adjoint of `forward` for gradients of h [T, B, H] and of the last h and c [B, H].

    Gradients are truncated before every `cut`-th step; 0 truncates none. The weight is [4 H, H].
    """
    for t in range(len(grad_out) - 1, -1, -1):
        for b in range(first, last):
            add(grads.h[b], grad_out[t, b])
            cell_backward(
                record.gates[t, b], record.c[t, b], record.inner[t, b], grads.h[b], grads.gates[t, b], grads.c[b]
            )
        multiply(gemm, grads.gates[t, first:last], weight, False, grads.h[first:last])
        for b in range(first, last):
            if gradient_ends(reset, cut, t, b):
                grads.h[b, :] = 0
                grads.c[b, :] = 0
