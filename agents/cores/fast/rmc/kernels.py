"""Compiled unroll of the relational memory core and its gradient, for some environments of a batch on a CPU.

The equations are in `rmc.RMC`. A call processes a few environments, step by step, so that their values stay in the
CPU's nearest caches.

Shapes: T steps, B environments, N slots of F values, and the input as the last of N + 1 rows, without a query; H heads
with q, k, v of D = H (2 K + V) values in total, V = F / H; L layers of the MLP, 2 G values of the gates (G = 0: none).
"""

from typing import Any, NamedTuple

import numpy as np

from .....base.compiled import compiled
from ..blas import multiply
from ..elementwise import (
    Array,
    add,
    add_scaled,
    add_through_tanh,
    copy,
    copy_rows,
    dot,
    gradient_ends,
    mix,
    mix_backward,
    normalize,
    normalize_backward,
    part,
    rectify,
    scale,
    sigmoid,
    tanh,
    through_relu,
)


class Leaves(NamedTuple):
    """All values that the unroll depends on and that have gradients, as tensors, or as arrays for compiled functions.
    Matrices are [outputs, inputs]."""

    row: Any  # [T, B, F]: the projected input
    gates_input: Any  # [T, B, 2 G]: its contribution to the gates
    memory: Any  # [B, N, F], before the first step
    qkv: Any  # [D, F]
    mlp: Any  # [L, F, F]
    gates: Any  # [2 G, F]: from the memory to the gates
    qkv_bias: Any  # [D], like gain and offset
    qkv_gain: Any
    qkv_offset: Any
    attention_gain: Any  # [F], like the three below
    attention_offset: Any
    mlp_gain: Any
    mlp_offset: Any
    mlp_bias: Any  # [L, F]
    gates_bias: Any  # [2 G]


VECTORS = Leaves._fields[6:]  # Biases, and gains and offsets of norms


class Settings(NamedTuple):
    """Values without gradients."""

    reset: Array  # bool [T, B]
    initial: Array  # [N, F]: the memory after a reset
    turned: bool  # Whether matrices are [inputs, outputs] in the forward pass, which is faster for few rows
    cut: int  # Gradients are truncated before every `cut`-th step; 0: none are


class Record(NamedTuple):
    """Activations saved by the forward pass for the backward pass; a record of one step is reused."""

    rows: Array  # [T, B, N + 1, F]: the memory before each step, after resets, and the projected input
    projected: Array  # [T, B, N + 1, D], normalized values
    projected_rstd: Array  # [T, B, N + 1]
    attention: Array  # [T, B, H, N, N + 1]: weights
    attended: Array  # [T, B, N, F], normalized values of memory + attention
    attended_rstd: Array  # [T, B, N]
    hidden: Array  # [L + 1, T, B, N, F]: inputs of the MLP's layers, then normalized values of its residual sum
    hidden_rstd: Array  # [T, B, N]
    candidate: Array  # [T, B, N, F]: tanh of the gates' candidate
    squashed: Array  # [T, B, N, F]: tanh of the memory
    gates: Array  # [T, B, N, 2 G]


class Group(NamedTuple):
    """Environments `first` to `last` - 1 at step t, whose activations are entry s of the record."""

    gemm: int  # Routine for `multiply`
    turned: bool  # Whether weights are [I, J] for `multiply`, as always in the backward pass
    t: int
    s: int
    first: int
    last: int


@part
def _rows(x: Array, span: Group) -> Array:
    """Return a view of the group's part of [B, N, .] as rows [b N, .]."""
    return x[span.first : span.last].reshape((span.last - span.first) * x.shape[1], x.shape[2])


@part
def _multiply(span: Group, x: Array, weight: Array, out: Array) -> None:
    multiply(span.gemm, _rows(x, span), weight, not span.turned, _rows(out, span))


@compiled("reassoc", "nsz")
def forward(gemm: int, first: int, last: int, settings: Settings, w: Leaves, record: Record, out: Array) -> None:
    """Compute all steps of environments `first` to `last` - 1; write the record and the memories [T, B, N, F]."""
    slots = len(settings.initial)
    qkv = np.empty((slots + 1, len(w.qkv_gain)), out.dtype)
    for t in range(len(out)):
        span = Group(gemm, settings.turned, t, t % len(record.rows), first, last)
        for b in range(first, last):
            rows = record.rows[span.s, b]
            copy(w.row[t, b], rows[slots])
            if settings.reset[t, b]:
                copy_rows(settings.initial, rows[:slots])
            else:
                copy_rows(out[t - 1, b] if t > 0 else w.memory[b], rows[:slots])
        _attention(span, w, record, qkv)
        _mlp(span, w, record, out[t])
        if len(w.gates_bias) > 0:
            _gates(span, w, record, out[t])


@part
def _attention(span: Group, w: Leaves, record: Record, qkv: Array) -> None:
    """Write LayerNorm(M + A), the input of the MLP, to the record."""
    s = span.s
    rows, projected, rstd, attended = record.rows[s], record.projected[s], record.projected_rstd[s], record.attended[s]
    _multiply(span, rows, w.qkv, projected)
    for b in range(span.first, span.last):
        for n in range(rows.shape[1]):
            add(projected[b, n], w.qkv_bias)
            rstd[b, n] = normalize(projected[b, n])
            scale(projected[b, n], w.qkv_gain, w.qkv_offset, qkv[n])
        attend(qkv, rows[b], record.attention[s, b], attended[b])
        for n in range(attended.shape[1]):
            record.attended_rstd[s, b, n] = normalize(attended[b, n])
            scale(attended[b, n], w.attention_gain, w.attention_offset, record.hidden[0, s, b, n])


@part
def _mlp(span: Group, w: Leaves, record: Record, out: Array) -> None:
    """Write LayerNorm(Z + MLP(Z)) to `out` [B, N, F]."""
    s, layers = span.s, len(w.mlp)
    z, last = record.hidden[0, s], record.hidden[layers, s]
    for layer in range(layers):
        y = record.hidden[layer + 1, s]
        _multiply(span, record.hidden[layer, s], w.mlp[layer], y)
        if layer < layers - 1:
            for b in range(span.first, span.last):
                for n in range(y.shape[1]):
                    rectify(y[b, n], w.mlp_bias[layer])
    for b in range(span.first, span.last):
        for n in range(z.shape[1]):
            add(last[b, n], w.mlp_bias[layers - 1])
            add(last[b, n], z[b, n])
            record.hidden_rstd[s, b, n] = normalize(last[b, n])
            scale(last[b, n], w.mlp_gain, w.mlp_offset, out[b, n])


@part
def _gates(span: Group, w: Leaves, record: Record, out: Array) -> None:
    """Overwrite the candidate in `out` [B, N, F] with the new memory."""
    memory, squashed, gates = record.rows[span.s], record.squashed[span.s], record.gates[span.s]
    for b in range(span.first, span.last):
        for n in range(squashed.shape[1]):
            tanh(memory[b, n], squashed[b, n])
    _multiply(span, squashed, w.gates, gates)
    for b in range(span.first, span.last):
        for n in range(squashed.shape[1]):
            candidate, new = record.candidate[span.s, b, n], out[b, n]
            add(gates[b, n], w.gates_input[span.t, b])
            add(gates[b, n], w.gates_bias)
            sigmoid(gates[b, n])
            tanh(new, candidate)
            mix(memory[b, n], candidate, gates[b, n], new)


@compiled("reassoc", "nsz")
def backward(
    gemm: int, first: int, last: int, settings: Settings, w: Leaves, record: Record, grad_out: Array, grads: Leaves
) -> None:
    """The adjoint of `forward` for gradients of the memories [T, B, N, F]; never `turned`.

    `grads.memory` initially contains the gradient of the last memory, and finally that of the first memory.
    """
    memory_grad = grads.memory
    slots, width = settings.initial.shape
    through = np.empty((last, slots, width), grad_out.dtype)
    old = np.zeros_like(through)
    rows_grad = np.empty((last, slots + 1, width), grad_out.dtype)
    for t in range(len(grad_out) - 1, -1, -1):
        span = Group(gemm, True, t, t, first, last)
        for b in range(first, last):
            for n in range(slots):
                add(memory_grad[b, n], grad_out[t, b, n])
        if len(w.gates_bias) > 0:
            _gates_backward(span, w, record, through, old, grads)
        _mlp_backward(span, w, record, through, grads)
        _attention_backward(span, w, record, through, rows_grad, grads)
        for b in range(first, last):
            copy(rows_grad[b, slots], grads.row[t, b])
            if gradient_ends(settings.reset, settings.cut, t, b):
                memory_grad[b] = 0
                continue
            for n in range(slots):
                copy(rows_grad[b, n], memory_grad[b, n])
                add(memory_grad[b, n], through[b, n])
                add(memory_grad[b, n], old[b, n])


@part
def _gates_backward(span: Group, w: Leaves, record: Record, through: Array, old: Array, grads: Leaves) -> None:
    """Overwrite the gradient of the new memory with that of the candidate; write that of the memory to `old`."""
    t, grad = span.t, grads.memory
    memory, gates, to_gates = record.rows[t], record.gates[t], grads.gates[t]
    row = np.empty_like(grad[0, 0])
    for b in range(span.first, span.last):
        to_input = grads.gates_input[t, b]
        to_input[:] = 0
        for n in range(grad.shape[1]):
            above, candidate, down = grad[b, n], record.candidate[t, b, n], to_gates[b, n]
            mix_backward(above, memory[b, n], candidate, gates[b, n], old[b, n], row, down)
            copy(row, above)
            add(to_input, down)
        add(grads.gates_bias, to_input)
    _multiply(span, to_gates, w.gates, through)
    for b in range(span.first, span.last):
        for n in range(grad.shape[1]):
            add_through_tanh(old[b, n], through[b, n], record.squashed[t, b, n])


@part
def _mlp_backward(span: Group, w: Leaves, record: Record, through: Array, grads: Leaves) -> None:
    """Gradient of LayerNorm(Z + MLP(Z)) in `grads.memory` -> that of Z in `through` [B, N, F]."""
    t, layers, grad = span.t, len(w.mlp), grads.memory
    last, rstd, top = record.hidden[layers, t], record.hidden_rstd[t], grads.mlp[layers - 1, t]
    to_gain, to_offset, to_bias = grads.mlp_gain, grads.mlp_offset, grads.mlp_bias
    for b in range(span.first, span.last):
        for n in range(grad.shape[1]):
            normalize_backward(grad[b, n], last[b, n], rstd[b, n], w.mlp_gain, top[b, n], to_gain, to_offset)
            add(to_bias[layers - 1], top[b, n])
    for layer in range(layers - 1, -1, -1):
        _multiply(span, grads.mlp[layer, t], w.mlp[layer], through)
        if layer > 0:
            for b in range(span.first, span.last):
                for n in range(grad.shape[1]):
                    below = grads.mlp[layer - 1, t, b, n]
                    through_relu(through[b, n], record.hidden[layer, t, b, n], below)
                    add(to_bias[layer - 1], below)
    for b in range(span.first, span.last):
        for n in range(grad.shape[1]):
            add(through[b, n], top[b, n])


@part
def _attention_backward(span: Group, w: Leaves, record: Record, through: Array, out: Array, grads: Leaves) -> None:
    """Overwrite `through` [B, N, F] of LayerNorm(M + A) with that of M + A; write that of the rows by A to `out`."""
    t, slots = span.t, through.shape[1]
    qkv = np.empty((slots + 1, len(w.qkv_gain)), out.dtype)
    grad_qkv = np.empty_like(qkv)
    row = np.empty_like(through[0, 0])
    projected, projected_rstd, down = record.projected[t], record.projected_rstd[t], grads.qkv[t]
    attended, rstd = record.attended[t], record.attended_rstd[t]
    to_gain, to_offset = grads.attention_gain, grads.attention_offset
    to_qkv_gain, to_qkv_offset = grads.qkv_gain, grads.qkv_offset
    for b in range(span.first, span.last):
        to_sum = through[b]
        for n in range(slots):
            normalize_backward(to_sum[n], attended[b, n], rstd[b, n], w.attention_gain, row, to_gain, to_offset)
            copy(row, to_sum[n])
        for n in range(slots + 1):
            scale(projected[b, n], w.qkv_gain, w.qkv_offset, qkv[n])
        attend_backward(to_sum, qkv, record.attention[t, b], grad_qkv)
        for n in range(slots + 1):
            normal, size = projected[b, n], projected_rstd[b, n]
            normalize_backward(grad_qkv[n], normal, size, w.qkv_gain, down[b, n], to_qkv_gain, to_qkv_offset)
            add(grads.qkv_bias, down[b, n])
    _multiply(span, down, w.qkv, out)


@part
def attend(qkv: Array, rows: Array, weights: Array, out: Array) -> None:
    """out [N, F] = the first N rows + weights v, with weights [H, N, N + 1] = softmax(q k^T / sqrt(K))."""
    heads, queries, every = weights.shape
    width, size = out.shape[1] // heads, qkv.shape[1] // heads
    keys = (size - width) // 2
    one = qkv.dtype.type(1)  # a Python float would convert everything to float64
    factor = one / np.sqrt(qkv.dtype.type(keys))
    for h in range(heads):
        q, k, v, end = h * size, h * size + keys, h * size + 2 * keys, (h + 1) * size
        for i in range(queries):
            weight, y = weights[h, i], out[i, h * width : (h + 1) * width]
            for j in range(every):
                weight[j] = factor * dot(qkv[i, q:k], qkv[j, k:v])
            _softmax(weight)
            copy(rows[i, h * width : (h + 1) * width], y)
            for j in range(every):
                add_scaled(y, weight[j], qkv[j, v:end])


@part
def attend_backward(grad: Array, qkv: Array, weights: Array, grad_qkv: Array) -> None:
    """The adjoint of `attend`: gradient of the result [N, F] -> of q, k, v [N + 1, D]."""
    heads, queries, every = weights.shape
    width, size = grad.shape[1] // heads, qkv.shape[1] // heads
    keys = (size - width) // 2
    one = qkv.dtype.type(1)
    factor = one / np.sqrt(qkv.dtype.type(keys))
    grad_weight = np.empty_like(weights[0, 0])
    grad_qkv[:] = 0
    for h in range(heads):
        q, k, v, end = h * size, h * size + keys, h * size + 2 * keys, (h + 1) * size
        for i in range(queries):
            weight, above = weights[h, i], grad[i, h * width : (h + 1) * width]
            mean = one - one
            for j in range(every):
                grad_weight[j] = dot(above, qkv[j, v:end])
                mean += weight[j] * grad_weight[j]
            for j in range(every):
                score = factor * weight[j] * (grad_weight[j] - mean)
                add_scaled(grad_qkv[i, q:k], score, qkv[j, k:v])
                add_scaled(grad_qkv[j, k:v], score, qkv[i, q:k])
                add_scaled(grad_qkv[j, v:end], weight[j], above)


@part
def _softmax(x: Array) -> None:
    largest = x[0]
    for j in range(1, len(x)):
        largest = max(largest, x[j])
    total = largest - largest
    for j in range(len(x)):
        x[j] = np.exp(x[j] - largest)
        total += x[j]
    for j in range(len(x)):
        x[j] /= total
