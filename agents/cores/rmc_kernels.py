"""The relational memory core's unroll and its gradient, compiled, for some columns of a batch on a CPU.

The equations are in `rmc.RMC`. A few columns at a time, all steps of one after the other: what a step needs stays in
the processor's nearest caches, the interpreter is left once per call, and threads that have let go of it can take
different columns.

Shapes: T steps, B columns, N slots of F numbers, H heads with q, k, v of D numbers in all, L layers of the MLP, 2 G
numbers for the gates (G = 0: none).
"""

from typing import NamedTuple

import numpy as np

from ..blas import multiply
from ..kernels_attention import attend, attend_backward, fill, mix, mix_backward
from ..kernels_elementwise import (
    add,
    add_through_tanh,
    normalise,
    normalise_backward,
    rectify,
    scale,
    sigmoid,
    tanh,
    through_relu,
)
from ..native import Array, compiled


class Weights(NamedTuple):
    """Parameters. Matrices are [outputs, inputs], or the other way round where a function is told so."""

    qkv: Array
    """[D, F]."""
    mlp: Array
    """[L, F, F]."""
    gates: Array
    """[2 G, F]."""
    qkv_bias: Array
    qkv_gain: Array
    qkv_offset: Array
    """[D]."""
    attention_gain: Array
    attention_offset: Array
    mlp_gain: Array
    mlp_offset: Array
    """[F]."""
    mlp_bias: Array
    """[L, F]."""
    gates_bias: Array
    """[2 G]."""


class Inputs(NamedTuple):
    """What the loop is given."""

    qkv: Array
    """[T, B, D]: of the input's row."""
    gates: Array
    """[T, B, 2 G]: the input's share."""
    reset: Array
    """bool [T, B]."""
    initial: Array
    """[N, F]."""
    state: Array
    """[B, N, F]."""


class Record(NamedTuple):
    """What the way back needs of the way forward."""

    memory: Array
    """[T, B, N, F], before each step, after resets."""
    projected: Array
    """[T, B, N, D], normal numbers."""
    projected_rstd: Array
    """[T, B, N]."""
    attention: Array
    """[T, B, H, N, N + 1]: weights."""
    attended: Array
    """[T, B, N, F], normal numbers of memory + attention."""
    attended_rstd: Array
    """[T, B, N]."""
    hidden: Array
    """[L + 1, T, B, N, F]: what each layer of the MLP is given, then normal numbers of its residual sum."""
    hidden_rstd: Array
    """[T, B, N]."""
    candidate: Array
    """[T, B, N, F]: tanh of what the gates let in."""
    squashed: Array
    """[T, B, N, F]: tanh of the memory."""
    gates: Array
    """[T, B, N, 2 G]."""


class Gradients(NamedTuple):
    """What the way back writes. The last fields are sums, in which every group of columns has its own row."""

    qkv_input: Array
    gates_input: Array
    state: Array
    """As in Inputs."""
    projected: Array
    """[T, B, N, D]: of the product with the matrix of q, k and v."""
    mlp: Array
    """[L, T, B, N, F]: of the products of the MLP."""
    gates: Array
    """[T, B, N, 2 G]."""
    qkv_bias: Array
    qkv_gain: Array
    qkv_offset: Array
    attention_gain: Array
    attention_offset: Array
    mlp_gain: Array
    mlp_offset: Array
    mlp_bias: Array
    gates_bias: Array


@compiled("reassoc", "nsz", inline=True)
def _rows(x: Array) -> Array:
    """[b, N, .] -> [b N, .], the same memory."""
    return x.reshape(x.shape[0] * x.shape[1], x.shape[2])


@compiled("reassoc", "nsz")
def forward(gemm: int, first: int, last: int, given: Inputs, w: Weights, turned: bool, record: Record, out: Array) -> None:
    """All steps of columns `first` to `last`; writes those columns of the record and of the memories [T, B, N, F].

    With `turned` the matrices are [inputs, outputs]: products of few rows are faster so. A record of one step and of a group.s columns is written over and over: for acting.
    """
    layers, slots = len(w.mlp), len(given.initial)
    start = first % record.memory.shape[1]
    shift, end = first - start, start + last - first
    columns, own = range(start, end), slice(start, end)
    qkv = np.empty((slots + 1, len(w.qkv_gain)), out.dtype)
    for t in range(len(out)):
        s = t % len(record.memory)
        memory, projected, attended = record.memory[s], record.projected[s], record.attended[s]
        for b in columns:
            if given.reset[t, b + shift]:
                memory[b] = given.initial
            elif t > 0:
                memory[b] = out[t - 1, b + shift]
            else:
                memory[b] = given.state[b + shift]

        multiply(gemm, _rows(memory[own]), w.qkv, not turned, _rows(projected[own]))
        x = record.hidden[0, s]
        for b in columns:
            for n in range(slots):
                add(projected[b, n], w.qkv_bias)
                record.projected_rstd[s, b, n] = normalise(projected[b, n])
            weights, other = record.attention[s, b], given.qkv[t, b + shift]
            attend(projected[b], other, memory[b], w.qkv_gain, w.qkv_offset, qkv, weights, attended[b])
            for n in range(slots):
                record.attended_rstd[s, b, n] = normalise(attended[b, n])
                scale(attended[b, n], w.attention_gain, w.attention_offset, x[b, n])

        for layer in range(layers):
            y = record.hidden[layer + 1, s]
            multiply(gemm, _rows(record.hidden[layer, s, own]), w.mlp[layer], not turned, _rows(y[own]))
            for b in columns:
                for n in range(slots):
                    if layer < layers - 1:
                        rectify(y[b, n], w.mlp_bias[layer])
                        continue
                    add(y[b, n], w.mlp_bias[layer])
                    add(y[b, n], x[b, n])
                    record.hidden_rstd[s, b, n] = normalise(y[b, n])
                    scale(y[b, n], w.mlp_gain, w.mlp_offset, out[t, b + shift, n])
        if len(w.gates_bias) == 0:
            continue

        squashed, gates = record.squashed[s], record.gates[s]
        for b in columns:
            for n in range(slots):
                tanh(memory[b, n], squashed[b, n])
        multiply(gemm, _rows(squashed[own]), w.gates, not turned, _rows(gates[own]))
        for b in columns:
            for n in range(slots):
                candidate, new = record.candidate[s, b, n], out[t, b + shift, n]
                add(gates[b, n], given.gates[t, b + shift])
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
    given: Inputs,
    w: Weights,
    record: Record,
    grad_out: Array,
    grad_state: Array,
    grads: Gradients,
) -> None:
    """The adjoint of `forward` for gradients of the memories [T, B, N, F] and of the last one [B, N, F].

    Sums go to row `group` of their arrays. Gradients are cut before every `cut`-th step; 0 cuts none.
    """
    layers, slots = len(w.mlp), len(given.initial)
    gated = len(w.gates_bias) > 0
    shape = (last - first, slots, len(given.initial[0]))
    grad = np.empty(shape, grad_out.dtype)
    through = np.empty_like(grad)
    old = np.empty_like(grad)
    residual = np.empty_like(grad)
    qkv = np.empty((slots + 1, len(w.qkv_gain)), grad_out.dtype)
    grad_qkv = np.empty_like(qkv)
    row = np.empty_like(grad[0, 0])
    grad[:] = grad_state[first:last]
    for t in range(len(grad_out) - 1, -1, -1):
        to_gates = grads.gates[t, first:last]
        for b in range(last - first):
            if gated:
                grads.gates_input[t, first + b, :] = 0
            for n in range(slots):
                above = grad[b, n]
                add(above, grad_out[t, first + b, n])
                if gated:
                    mix_backward(
                        above,
                        record.memory[t, first + b, n],
                        record.candidate[t, first + b, n],
                        record.gates[t, first + b, n],
                        old[b, n],
                        row,
                        to_gates[b, n],
                    )
                    add(grads.gates_input[t, first + b], to_gates[b, n])
                    above[:] = row
                normalise_backward(
                    above,
                    record.hidden[layers, t, first + b, n],
                    record.hidden_rstd[t, first + b, n],
                    w.mlp_gain,
                    grads.mlp[layers - 1, t, first + b, n],
                    grads.mlp_gain[group],
                    grads.mlp_offset[group],
                )
                add(grads.mlp_bias[group, layers - 1], grads.mlp[layers - 1, t, first + b, n])
        if gated:
            multiply(gemm, _rows(to_gates), w.gates, False, _rows(through))
            for b in range(last - first):
                add(grads.gates_bias[group], grads.gates_input[t, first + b])
                for n in range(slots):
                    add_through_tanh(old[b, n], through[b, n], record.squashed[t, first + b, n])

        for layer in range(layers - 1, -1, -1):
            multiply(gemm, _rows(grads.mlp[layer, t, first:last]), w.mlp[layer], False, _rows(through))
            if layer > 0:
                for b in range(last - first):
                    for n in range(slots):
                        below = grads.mlp[layer - 1, t, first + b, n]
                        through_relu(through[b, n], record.hidden[layer, t, first + b, n], below)
                        add(grads.mlp_bias[group, layer - 1], below)

        for b in range(last - first):
            for n in range(slots):
                add(through[b, n], grads.mlp[layers - 1, t, first + b, n])
                normalise_backward(
                    through[b, n],
                    record.attended[t, first + b, n],
                    record.attended_rstd[t, first + b, n],
                    w.attention_gain,
                    residual[b, n],
                    grads.attention_gain[group],
                    grads.attention_offset[group],
                )
            fill(qkv, record.projected[t, first + b], given.qkv[t, first + b], w.qkv_gain, w.qkv_offset)
            attend_backward(residual[b], qkv, record.attention[t, first + b], grad_qkv)
            for n in range(slots):
                below = grads.projected[t, first + b, n]
                normalise_backward(
                    grad_qkv[n],
                    record.projected[t, first + b, n],
                    record.projected_rstd[t, first + b, n],
                    w.qkv_gain,
                    below,
                    grads.qkv_gain[group],
                    grads.qkv_offset[group],
                )
                add(grads.qkv_bias[group], below)
            grads.qkv_input[t, first + b, :] = grad_qkv[slots]
        multiply(gemm, _rows(grads.projected[t, first:last]), w.qkv, False, _rows(grad))

        for b in range(last - first):
            if given.reset[t, first + b] or (cut > 0 and t > 0 and t % cut == 0):
                grad[b] = 0
                continue
            for n in range(slots):
                add(grad[b, n], residual[b, n])
                if gated:
                    add(grad[b, n], old[b, n])
    grads.state[first:last] = grad
