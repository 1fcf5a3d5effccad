"""ConvLSTM's unroll and its gradient, compiled, for some environments of a batch on a CPU.

The equations are in `conv_lstm.ConvLSTM`; shapes are those of `arrays.py`. A convolution is one matrix
multiplication: every place has its neighborhood contiguously in one row of `seen`.
"""

from .....base.compiled import compiled
from ..blas import multiply
from ..elementwise import Array, add, gradient_ends, part
from ..gated.cell import cell, cell_backward
from .arrays import Gradients, Inputs, Record


@part
def look(h: Array, places: Array, out: Array) -> None:
    """Write the neighborhood of every place of one image: h [P, C] -> `out` [P, K C]."""
    channels = h.shape[1]
    for p in range(len(places)):
        for k in range(places.shape[1]):
            place, into = places[p, k], out[p, k * channels : (k + 1) * channels]
            if place < 0:
                into[:] = 0
            else:
                into[:] = h[place]


@part
def look_backward(grad_seen: Array, places: Array, grad_h: Array) -> None:
    """The adjoint of `look`: [P, K C] -> `grad_h` [P, C], which is overwritten."""
    channels = grad_h.shape[1]
    grad_h[:] = 0
    for p in range(len(places)):
        for k in range(places.shape[1]):
            if places[p, k] >= 0:
                add(grad_h[places[p, k]], grad_seen[p, k * channels : (k + 1) * channels])


@compiled("reassoc", "nsz")
def forward(
    gemm: int, first: int, last: int, inputs: Inputs, weight: Array, record: Record, out: Array, cells: Array
) -> None:
    """All steps of environments `first` to `last`: their h [T, B, P, C] in `out`, their last c [B, P, C] in `cells`.

    The weight is [4 C, K C]. A record of one step and of a group's environments is reused for acting.
    """
    size = len(inputs.places)
    start = first % (record.c.shape[1] // size)
    shift, end = first - start, start + last - first
    cells[first:last] = inputs.c[first:last]
    for t in range(len(out)):
        s = t % len(record.c)
        patches, c, gates, inner = record.seen[s], record.c[s], record.gates[s], record.inner[s]
        for b in range(start, end):
            rows = slice(b * size, (b + 1) * size)
            if inputs.reset[t, b + shift]:
                patches[rows] = 0
                c[rows] = 0
            else:
                look(out[t - 1, b + shift] if t > 0 else inputs.h[b + shift], inputs.places, patches[rows])
                c[rows] = cells[b + shift]
        multiply(gemm, patches[start * size : end * size], weight, True, gates[start * size : end * size])
        for b in range(start, end):
            for p in range(size):
                row = b * size + p
                add(gates[row], inputs.gates[t, b + shift, p])
                cell(gates[row], c[row], inner[row], cells[b + shift, p], out[t, b + shift, p])


@compiled("reassoc", "nsz")
def backward(
    gemm: int,
    first: int,
    last: int,
    cut: int,
    inputs: Inputs,
    weight: Array,
    record: Record,
    grad_out: Array,
    grads: Gradients,
) -> None:
    """The adjoint of `forward` for gradients of h [T, B, P, C] and of the last h and c [B P, C].

    Gradients are truncated before every `cut`-th step; 0 truncates none. The weight is [4 C, K C].
    """
    size = len(inputs.places)
    for t in range(len(grad_out) - 1, -1, -1):
        for b in range(first, last):
            for p in range(size):
                row = b * size + p
                add(grads.h[row], grad_out[t, b, p])
                cell_backward(
                    record.gates[t, row],
                    record.c[t, row],
                    record.inner[t, row],
                    grads.h[row],
                    grads.gates[t, row],
                    grads.c[row],
                )
        rows = slice(first * size, last * size)
        multiply(gemm, grads.gates[t, rows], weight, False, grads.seen[rows])
        for b in range(first, last):
            rows = slice(b * size, (b + 1) * size)
            if gradient_ends(inputs.reset, cut, t, b):
                grads.h[rows] = 0
                grads.c[rows] = 0
            else:
                look_backward(grads.seen[rows], inputs.places, grads.h[rows])
