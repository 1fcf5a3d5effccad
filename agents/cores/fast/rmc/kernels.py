"""Compiled unroll of the relational memory core and its gradient, for some environments of a batch on a CPU.

The equations are in `rmc.RMC`. A call processes a few environments, step by step: their values stay in the
CPU's nearest caches, the interpreter is left once per call, and threads that have released its lock can process
different environments. Shapes use the letters of `arrays.py`.
"""

from typing import NamedTuple

import numpy as np

from .....base.compiled import compiled
from ..blas import multiply
from ..elementwise import (
    Array,
    add,
    add_through_tanh,
    copy,
    copy_rows,
    gradient_ends,
    normalize,
    normalize_backward,
    part,
    rectify,
    scale,
    sigmoid,
    tanh,
    through_relu,
)
from .arrays import Leaves, Record, Resets
from .attention import attend, attend_backward, mix, mix_backward


class Group(NamedTuple):
    """Environments at one step: from `first` on in the inputs and results of step t, from `start` on in entry s of the
    record."""

    t: int
    first: int
    s: int
    start: int
    width: int


@part
def _rows(x: Array, span: Group) -> Array:
    """Return a view of the group's part of [B, N, .] as rows [b N, .]."""
    return x[span.start : span.start + span.width].reshape(span.width * x.shape[1], x.shape[2])


@compiled("reassoc", "nsz")
def forward(
    gemm: int, first: int, last: int, resets: Resets, w: Leaves, turned: bool, record: Record, out: Array
) -> None:
    """Compute all steps of environments `first` to `last` - 1; write the record and the memories [T, B, N, F].

    With `turned`, matrices are [inputs, outputs], which makes multiplications of few rows faster. For acting,
    the record has one step and the environments of one group, and is reused.
    """
    qkv = np.empty((len(resets.memory) + 1, len(w.qkv_gain)), out.dtype)
    for t in range(len(out)):
        span = Group(t, first, t % len(record.rows), first % record.rows.shape[1], last - first)
        _remember(span, resets, w, record, out)
        _attention(gemm, span, w, turned, record, qkv)
        _mlp(gemm, span, w, turned, record, out[t])
        if len(w.gates_bias) > 0:
            _gates(gemm, span, w, turned, record, out[t])


@part
def _remember(span: Group, resets: Resets, w: Leaves, record: Record, out: Array) -> None:
    """Write the rows of the attention: the memory before the step and the input."""
    slots = len(resets.memory)
    for b in range(span.width):
        rows, env = record.rows[span.s, span.start + b], span.first + b
        copy(w.row[span.t, env], rows[slots])
        if resets.at[span.t, env]:
            copy_rows(resets.memory, rows[:slots])
        elif span.t > 0:
            copy_rows(out[span.t - 1, env], rows[:slots])
        else:
            copy_rows(w.memory[env], rows[:slots])


@part
def _attention(gemm: int, span: Group, w: Leaves, turned: bool, record: Record, qkv: Array) -> None:
    """Write LayerNorm(M + A), the input of the MLP, to the record."""
    s = span.s
    rows, projected, rstd, attended = record.rows[s], record.projected[s], record.projected_rstd[s], record.attended[s]
    multiply(gemm, _rows(rows, span), w.qkv, not turned, _rows(projected, span))
    for b in range(span.start, span.start + span.width):
        for n in range(rows.shape[1]):
            add(projected[b, n], w.qkv_bias)
            rstd[b, n] = normalize(projected[b, n])
        places = w.places[span.t, span.first + b - span.start]
        attend(projected[b], rows[b], w.qkv_gain, w.qkv_offset, places, qkv, record.attention[s, b], attended[b])
        for n in range(attended.shape[1]):
            record.attended_rstd[s, b, n] = normalize(attended[b, n])
            scale(attended[b, n], w.attention_gain, w.attention_offset, record.hidden[0, s, b, n])


@part
def _mlp(gemm: int, span: Group, w: Leaves, turned: bool, record: Record, out: Array) -> None:
    """Write LayerNorm(Z + MLP(Z)) to `out` [B, N, F]."""
    s, layers = span.s, len(w.mlp)
    z, last = record.hidden[0, s], record.hidden[layers, s]
    for layer in range(layers):
        y = record.hidden[layer + 1, s]
        multiply(gemm, _rows(record.hidden[layer, s], span), w.mlp[layer], not turned, _rows(y, span))
        if layer < layers - 1:
            for b in range(span.start, span.start + span.width):
                for n in range(y.shape[1]):
                    rectify(y[b, n], w.mlp_bias[layer])
    for b in range(span.start, span.start + span.width):
        for n in range(z.shape[1]):
            add(last[b, n], w.mlp_bias[layers - 1])
            add(last[b, n], z[b, n])
            record.hidden_rstd[s, b, n] = normalize(last[b, n])
            scale(last[b, n], w.mlp_gain, w.mlp_offset, out[span.first + b - span.start, n])


@part
def _gates(gemm: int, span: Group, w: Leaves, turned: bool, record: Record, out: Array) -> None:
    """Overwrite the candidate in `out` [B, N, F] with the new memory."""
    memory, squashed, gates = record.rows[span.s], record.squashed[span.s], record.gates[span.s]
    for b in range(span.start, span.start + span.width):
        for n in range(squashed.shape[1]):
            tanh(memory[b, n], squashed[b, n])
    multiply(gemm, _rows(squashed, span), w.gates, not turned, _rows(gates, span))
    for b in range(span.start, span.start + span.width):
        env = span.first + b - span.start
        for n in range(squashed.shape[1]):
            candidate, new = record.candidate[span.s, b, n], out[env, n]
            add(gates[b, n], w.gates_input[span.t, env])
            add(gates[b, n], w.gates_bias)
            sigmoid(gates[b, n])
            tanh(new, candidate)
            mix(memory[b, n], candidate, gates[b, n], new)


@compiled("reassoc", "nsz")
def backward(
    gemm: int,
    group: int,
    first: int,
    last: int,
    cut: int,
    resets: Resets,
    w: Leaves,
    record: Record,
    grad_out: Array,
    grads: Leaves,
) -> None:
    """The adjoint of `forward` for gradients of the memories [T, B, N, F].

    `grads.memory` initially contains the gradient of the last memory, and finally that of the first memory. Sums are
    written to row `group` of their arrays. Gradients are truncated before every `cut`-th step; 0 truncates none.
    """
    memory_grad = grads.memory
    through = np.empty((last - first, *resets.memory.shape), grad_out.dtype)
    old = np.zeros_like(through)
    rows_grad = np.empty((last - first, len(resets.memory) + 1, resets.memory.shape[1]), grad_out.dtype)
    for t in range(len(grad_out) - 1, -1, -1):
        span = Group(t, first, t, first, last - first)
        for b in range(first, last):
            for n in range(memory_grad.shape[1]):
                add(memory_grad[b, n], grad_out[t, b, n])
        if len(w.gates_bias) > 0:
            _gates_backward(gemm, group, span, w, record, memory_grad, through, old, grads)
        _mlp_backward(gemm, group, span, w, record, memory_grad, through, grads)
        _attention_backward(gemm, group, span, w, record, through, rows_grad, grads)
        for b in range(first, last):
            copy(rows_grad[b - first, memory_grad.shape[1]], grads.row[t, b])
            if gradient_ends(resets.at, cut, t, b):
                memory_grad[b] = 0
                continue
            for n in range(memory_grad.shape[1]):
                copy(rows_grad[b - first, n], memory_grad[b, n])
                add(memory_grad[b, n], through[b - first, n])
                add(memory_grad[b, n], old[b - first, n])


@part
def _gates_backward(
    gemm: int,
    group: int,
    span: Group,
    w: Leaves,
    record: Record,
    grad: Array,
    through: Array,
    old: Array,
    grads: Leaves,
) -> None:
    """Overwrite `grad` [B, N, F] of the new memory with that of the candidate; write that of the memory to `old`."""
    t, first = span.t, span.first
    memory, gates, to_gates = record.rows[t], record.gates[t], grads.gates[t]
    row = np.empty_like(grad[0, 0])
    for b in range(span.width):
        to_input = grads.gates_input[t, first + b]
        to_input[:] = 0
        for n in range(grad.shape[1]):
            above, candidate = grad[first + b, n], record.candidate[t, first + b, n]
            down = to_gates[first + b, n]
            mix_backward(above, memory[first + b, n], candidate, gates[first + b, n], old[b, n], row, down)
            copy(row, above)
            add(to_input, down)
        add(grads.gates_bias[group], to_input)
    single = Group(t, 0, 0, 0, span.width)
    multiply(gemm, _rows(to_gates, span), w.gates, False, _rows(through, single))
    for b in range(span.width):
        for n in range(grad.shape[1]):
            add_through_tanh(old[b, n], through[b, n], record.squashed[t, first + b, n])


@part
def _mlp_backward(
    gemm: int, group: int, span: Group, w: Leaves, record: Record, grad: Array, through: Array, grads: Leaves
) -> None:
    """Gradient `grad` [B, N, F] of LayerNorm(Z + MLP(Z)) -> that of Z in `through` [b, N, F]."""
    t, first, layers = span.t, span.first, len(w.mlp)
    last, rstd, top = record.hidden[layers, t], record.hidden_rstd[t], grads.mlp[layers - 1, t]
    to_gain, to_offset, to_bias = grads.mlp_gain[group], grads.mlp_offset[group], grads.mlp_bias[group]
    for b in range(first, first + span.width):
        for n in range(grad.shape[1]):
            normalize_backward(grad[b, n], last[b, n], rstd[b, n], w.mlp_gain, top[b, n], to_gain, to_offset)
            add(to_bias[layers - 1], top[b, n])
    single = Group(t, 0, 0, 0, span.width)
    for layer in range(layers - 1, -1, -1):
        multiply(gemm, _rows(grads.mlp[layer, t], span), w.mlp[layer], False, _rows(through, single))
        if layer > 0:
            for b in range(span.width):
                for n in range(grad.shape[1]):
                    below = grads.mlp[layer - 1, t, first + b, n]
                    through_relu(through[b, n], record.hidden[layer, t, first + b, n], below)
                    add(to_bias[layer - 1], below)
    for b in range(span.width):
        for n in range(grad.shape[1]):
            add(through[b, n], top[first + b, n])


@part
def _attention_backward(
    gemm: int, group: int, span: Group, w: Leaves, record: Record, through: Array, out: Array, grads: Leaves
) -> None:
    """Overwrite `through` [b, N, F] of LayerNorm(M + A) with that of M + A; write that of the rows by A to `out`."""
    t, first, slots = span.t, span.first, through.shape[1]
    qkv = np.empty((slots + 1, len(w.qkv_gain)), out.dtype)
    grad_qkv = np.empty_like(qkv)
    row = np.empty_like(through[0, 0])
    projected, projected_rstd, down = record.projected[t], record.projected_rstd[t], grads.qkv[t]
    attended, rstd = record.attended[t], record.attended_rstd[t]
    to_gain, to_offset = grads.attention_gain[group], grads.attention_offset[group]
    to_qkv_gain, to_qkv_offset = grads.qkv_gain[group], grads.qkv_offset[group]
    for b in range(first, first + span.width):
        to_sum = through[b - first]
        for n in range(slots):
            normalize_backward(to_sum[n], attended[b, n], rstd[b, n], w.attention_gain, row, to_gain, to_offset)
            copy(row, to_sum[n])
        for n in range(slots + 1):
            scale(projected[b, n], w.qkv_gain, w.qkv_offset, qkv[n])
        attend_backward(to_sum, qkv, w.places[t, b], record.attention[t, b], grad_qkv, grads.places[t, b])
        for n in range(slots + 1):
            normal, size = projected[b, n], projected_rstd[b, n]
            normalize_backward(grad_qkv[n], normal, size, w.qkv_gain, down[b, n], to_qkv_gain, to_qkv_offset)
            add(grads.qkv_bias[group], down[b, n])
    single = Group(t, 0, 0, 0, span.width)
    multiply(gemm, _rows(down, span), w.qkv, False, _rows(out, single))
