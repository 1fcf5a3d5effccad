"""Compiled unroll of MNM, for some environments of a batch on a CPU; equations in `mnm.MNM`.

Shapes: T steps, B environments, S cells of the LSTM, d values of a layer of the memory, H heads. "Local" updates are
MNMp's; their arrays have length 0 for MNMg, and vice versa.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from .....base.compiled import compiled
from ..blas import multiply
from ..elementwise import Array, add, add_scaled, copy, copy_rows, dot, normalize, part, scale, tanh
from ..gated import cell


class Leaves(NamedTuple):
    """All values that the unroll depends on and that have gradients, as tensors, or as arrays for compiled functions.
    Matrices are [outputs, inputs], transposed in the forward pass."""

    gates: Any  # [T, B, 4 S]: W_x x + b
    h: Any
    c: Any  # [B, S]
    read: Any  # [B, d]
    memory: Any  # [B, 3, d, d], before the first step
    recurrent: Any  # [4 S, S + d]: from [h ; v^r] to the LSTM's gates.
    heads: Any  # [(3 H + 1) d, S]: W_v
    targets: Any  # [3 d, d]: q; [0, d] for MNMg.
    heads_bias: Any
    rate: Any  # [d]: w_beta
    rate_bias: Any  # [1]
    targets_bias: Any
    norm_gain: Any
    norm_bias: Any  # [(3 H + 1) d]: of the layer normalization; [0] if tanh replaces it.


class Inputs(NamedTuple):
    """Inputs of the loop that have no gradient."""

    reset: Array  # bool [T, B]
    kept: Array  # int [T, B]: index in `Record.memories` for the memory that a reset replaces; -1: none.
    initial: Array  # [3, d, d]: the memory after a reset
    scale: Array  # [2]: s of the write, and the factor of the meta error
    cut: int  # Gradients are truncated before every `cut`-th step; 0: none are


class Result(NamedTuple):
    """Values, or their gradients, of every step, and of the state after the last, as tensors or arrays."""

    joined: Any  # [T, B, S + d]: [h ; v^r]
    errors: Any  # [T, B]: meta errors
    c: Any  # [B, S]
    memory: Any  # [B, 3, d, d]


class Record(NamedTuple):
    """Activations saved by the forward pass for the backward pass; a record of one step is reused."""

    joined: Array  # [T, B, S + d]: h and v^r before each step, after resets
    c: Array  # [T, B, S]: likewise
    gates: Array  # [T, B, 4 S]: i, f, g, o
    squashed: Array  # [T, B, S]: tanh of the cells after each step
    heads: Array  # [T, B, (3 H + 1) d]: beta', then k^w, v^w, k^r of each head
    normal: Array  # [T, B, (3 H + 1) d]: the same before gain and bias; [T, B, 0] without normalization.
    spread: Array  # [T, B, 1]: 1 / deviation of W_v h + b_v, with normalization
    beta: Array  # [T, B, 1]
    keys: Array  # [T, B, 2 H, d]: the write keys, then the read keys
    values: Array  # [T, B, H, d]
    targets: Array  # [T, B, H, 3 d]: q(v^w), local
    written: Array  # [T, B, 3, H, d]: z^1 .. z^3 of the write keys in the memory before the write.
    errors: Array  # [T, B, 3, H, d]: D^1 .. D^3.
    back: Array  # [T, B, 2, H, d]: (M^{l+1})^T D^{l+1}, l = 1, 2; not local.
    found: Array  # [T, B, 3, 2 H, d]: z^1 .. z^3 of all keys in the memory after the write.
    memories: Array  # [., 3, d, d]: memories that resets replaced


class Gradients(NamedTuple):
    """Gradients that the backward pass writes."""

    gates: Array
    heads: Array
    targets: Array  # Of the matrix products of these names, [T, B, ...] as in Record
    norm_gain: Array
    norm_bias: Array  # [groups, (3 H + 1) d], in the loop only the group's: sums over its environments; else width 0.
    rate: Array  # [T, B, 1]: of the sigmoid's argument
    joined: Array  # [B, S + d]: of the last h and v^r, overwritten with those of the first
    c: Array
    memory: Array  # [B, 3, d, d]: likewise


@compiled("reassoc", "nsz")
def forward(gemm: int, first: int, last: int, inputs: Inputs, w: Leaves, record: Record, result: Result) -> None:
    """Compute all steps of environments `first` to `last` - 1; the result's memory is initially that before step 0."""
    out, errors, cells, memory = result
    values, width = record.values.shape[2:]
    size = cells.shape[1]
    copy_rows(w.c[first:last], cells[first:last])
    hidden = np.empty((last - first, size), out.dtype)
    for t in range(len(out)):
        s = t % len(record.c)
        for b in range(first, last):
            joined, c = record.joined[s, b], record.c[s, b]
            if inputs.reset[t, b]:
                joined[:] = 0
                c[:] = 0
                if inputs.kept[t, b] >= 0:
                    copy_memory(memory[b], record.memories[inputs.kept[t, b]])
                copy_memory(inputs.initial, memory[b])
                continue
            if t > 0:
                copy(out[t - 1, b], joined)
            else:
                copy(w.h[b], joined[:size])
                copy(w.read[b], joined[size:])
            copy(cells[b], c)
        multiply(gemm, record.joined[s, first:last], w.recurrent, False, record.gates[s, first:last])
        for b in range(first, last):
            add(record.gates[s, b], w.gates[t, b])
            cell(record.gates[s, b], record.c[s, b], record.squashed[s, b], cells[b], out[t, b, :size])
            copy(out[t, b, :size], hidden[b - first])
        # [beta' ; k^w, v^w, k^r per head] = tanh(W_v h + b_v), or its layer normalization
        multiply(gemm, hidden, w.heads, False, record.heads[s, first:last])
        for b in range(first, last):
            heads = record.heads[s, b]
            add(heads, w.heads_bias)
            if len(w.norm_gain) > 0:
                record.spread[s, b, 0] = normalize(heads)
                copy(heads, record.normal[s, b])
                scale(record.normal[s, b], w.norm_gain, w.norm_bias, heads)
            else:
                tanh(heads, heads)
            record.beta[s, b, 0] = _rate(heads[:width], w)
            for n in range(values):
                at = width * (1 + 3 * n)
                copy(heads[at : at + width], record.keys[s, b, n])
                copy(heads[at + width : at + 2 * width], record.values[s, b, n])
                copy(heads[at + 2 * width : at + 3 * width], record.keys[s, b, values + n])
        if len(w.targets_bias) > 0:
            rows = record.values[s, first:last].reshape(-1, width)
            multiply(gemm, rows, w.targets, False, record.targets[s, first:last].reshape(len(rows), -1))
        for b in range(first, last):
            _write(s, b, inputs, w, record, memory[b])
            errors[t, b] = _read(s, b, inputs, record, memory[b], out[t, b, size:])


@part
def _rate(squashed: Array, w: Leaves) -> float:
    """beta = sigmoid(w_beta beta' + b_beta)."""
    total = w.rate_bias[0]
    for k in range(len(squashed)):
        total += w.rate[k] * squashed[k]
    one = squashed.dtype.type(1)
    return one / (one + squashed.dtype.type(math.exp(-total)))


@part
def _write(s: int, b: int, inputs: Inputs, w: Leaves, record: Record, memory: Array) -> None:
    """M^l <- M^l - beta s sum_heads D^l (z^{l-1})^T."""
    one = memory.dtype.type(1)
    heads, width = record.values.shape[2:]
    keys, values = record.keys[s, b, :heads], record.values[s, b]
    z, d = record.written[s, b], record.errors[s, b]
    # z^l = tanh(M^l z^{l-1}), z^3 without tanh
    for level in range(3):
        times(memory[level], keys if level == 0 else z[level - 1], z[level])
        if level < 2:
            for n in range(heads):
                tanh(z[level, n], z[level, n])
    if len(w.targets_bias) > 0:
        # D^l = z^l - q^l(v^w)
        for level in range(3):
            for n in range(heads):
                target = record.targets[s, b, n, level * width : (level + 1) * width]
                for k in range(width):
                    d[level, n, k] = z[level, n, k] - target[k] - w.targets_bias[level * width + k]
    else:
        # D^3 = z^3 - v^w,  D^l = (1 - (z^l)^2) * (M^{l+1})^T D^{l+1}
        for n in range(heads):
            for k in range(width):
                d[2, n, k] = z[2, n, k] - values[n, k]
        for level in range(1, -1, -1):
            back = record.back[s, b, level]
            turned_times(memory[level + 1], d[level + 1], back)
            for n in range(heads):
                for k in range(width):
                    d[level, n, k] = back[n, k] * (one - z[level, n, k] * z[level, n, k])
    step = record.beta[s, b, 0] * inputs.scale[0]
    for level in range(3):
        add_outer(memory[level], -step, d[level], keys if level == 0 else z[level - 1])


@part
def _read(s: int, b: int, inputs: Inputs, record: Record, memory: Array, read: Array) -> float:
    """Write v^r = mean over heads of f(k^r) to `read`; return the meta error, mean of (f(k^w) - v^w)^2."""
    heads, width = record.values.shape[2:]
    keys, z, values = record.keys[s, b], record.found[s, b], record.values[s, b]
    for level in range(3):
        times(memory[level], keys if level == 0 else z[level - 1], z[level])
        if level < 2:
            for n in range(2 * heads):
                tanh(z[level, n], z[level, n])
    error = read.dtype.type(0)
    for n in range(heads):
        for k in range(width):
            miss = z[2, n, k] - values[n, k]
            error += miss * miss
    share = read.dtype.type(1) / read.dtype.type(heads)
    for k in range(width):
        total = read.dtype.type(0)
        for n in range(heads):
            total += z[2, heads + n, k]
        read[k] = total * share
    return error * inputs.scale[1]


# -- multiplications of one environment's memory M and a few keys x, y [R, d], too small for a BLAS routine -----------


@part
def copy_memory(x: Array, out: Array) -> None:
    for level in range(len(out)):
        copy_rows(x[level], out[level])


@part
def times(matrix: Array, x: Array, out: Array) -> None:
    """out[r] = M x[r]. One pass over M serves three keys."""
    zero = x.dtype.type(0)
    by_three = len(x) - len(x) % 3
    for i in range(len(matrix)):
        w = matrix[i]
        for r in range(0, by_three, 3):
            a, b, c = x[r], x[r + 1], x[r + 2]
            sum_a, sum_b, sum_c = zero, zero, zero
            for j in range(len(w)):
                sum_a += w[j] * a[j]
                sum_b += w[j] * b[j]
                sum_c += w[j] * c[j]
            out[r, i], out[r + 1, i], out[r + 2, i] = sum_a, sum_b, sum_c
        for r in range(by_three, len(x)):
            out[r, i] = dot(w, x[r])


@part
def turned_times(matrix: Array, y: Array, out: Array) -> None:
    """out[r] = M^T y[r]."""
    size = len(matrix)
    by_four = size - size % 4
    for r in range(len(y)):
        total, g = out[r], y[r]
        total[:] = 0
        for i in range(0, by_four, 4):
            a, b, c, d = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
            p, q, u, v = g[i], g[i + 1], g[i + 2], g[i + 3]
            for j in range(size):
                total[j] += p * a[j] + q * b[j] + u * c[j] + v * d[j]
        for i in range(by_four, size):
            add_scaled(total, g[i], matrix[i])


@part
def add_outer(matrix: Array, factor: float, y: Array, x: Array) -> None:
    """M += factor sum over r of y[r] x[r]^T."""
    by_three = len(x) - len(x) % 3
    for i in range(len(matrix)):
        w = matrix[i]
        for r in range(0, by_three, 3):
            p, q, s = factor * y[r, i], factor * y[r + 1, i], factor * y[r + 2, i]
            a, b, c = x[r], x[r + 1], x[r + 2]
            for j in range(len(w)):
                w[j] += p * a[j] + q * b[j] + s * c[j]
        for r in range(by_three, len(x)):
            add_scaled(w, factor * y[r, i], x[r])
