"""Compiled gradient of MNM's unroll, for some environments of a batch on a CPU; shapes are those of `forward.py`.

The memories of all steps would be by far the largest part of a record. The backward pass undoes writes instead:
M_{t-1} = M_t + beta s sum_heads D z^T. Only memories that resets replace are saved.
"""

from typing import NamedTuple

import numpy as np

from .....base.compiled import compiled
from ..blas import multiply
from ..elementwise import Array, add, add_through_tanh, dot, gradient_ends, normalize_backward, part
from ..gated import cell_backward
from .forward import Gradients, Inputs, Leaves, Record, Result, add_outer, copy_memory, times, turned_times


class Room(NamedTuple):
    """Gradients of one environment at one step."""

    to_keys: Array  # [2 H, d]
    to_values: Array  # [H, d]: of v^w, except the part through q
    y: Array
    below: Array  # [2 H, d]: of layers l (y) and l - 1 (below) for all keys, from the last layer to the first
    to_d: Array  # [3, H, d]: of D^1 .. D^3.
    to_z: Array  # [3, H, d]: of z^0 .. z^2 of the write keys.


@compiled("reassoc", "nsz")
def backward(
    gemm: int,
    first: int,
    last: int,
    inputs: Inputs,
    w: Leaves,
    record: Record,
    memory: Array,
    above: Result,
    grads: Gradients,
) -> None:
    """The adjoint of `forward`, from the gradients `above` of its results; `grads` initially contains those of the last
    state. `memory` [B, 3, d, d] is the last memory and becomes the first."""
    heads, width = record.values.shape[2:]
    size = record.c.shape[2]
    count = last - first
    grad_out, dtype = above.joined, above.joined.dtype
    to_values = np.empty((count * heads, width), dtype)
    through_targets = np.zeros((count * heads, width), dtype)
    to_keys = np.empty((count, 2 * heads, width), dtype)
    to_hidden = np.empty((count, size), dtype)
    keys_room, heads_room = np.empty((2, 2 * heads, width), dtype), np.empty((2, 3, heads, width), dtype)
    between = keys_room[0], keys_room[1], heads_room[0], heads_room[1]
    for t in range(len(grad_out) - 1, -1, -1):
        for b in range(first, last):
            at = (b - first) * heads
            room = Room(to_keys[b - first], to_values[at : at + heads], *between)
            _memory(t, b, inputs, record, memory[b], above, grads, room)
        if len(w.targets_bias) > 0:
            rows = grads.targets[t, first:last].reshape(count * heads, -1)
            multiply(gemm, rows, w.targets, False, through_targets)
        for b in range(first, last):
            at = (b - first) * heads
            _heads(t, b, w, record, to_keys[b - first], to_values[at:], through_targets[at:], grads)
        multiply(gemm, grads.heads[t, first:last], w.heads, False, to_hidden)
        for b in range(first, last):
            to_h = to_hidden[b - first]
            add(to_h, grads.joined[b, :size])
            add(to_h, grad_out[t, b, :size])
            gates, c, squashed = record.gates[t, b], record.c[t, b], record.squashed[t, b]
            cell_backward(gates, c, squashed, to_h, grads.gates[t, b], grads.c[b])
        multiply(gemm, grads.gates[t, first:last], w.recurrent, False, grads.joined[first:last])
        for b in range(first, last):
            if inputs.kept[t, b] >= 0:
                copy_memory(record.memories[inputs.kept[t, b]], memory[b])
            if gradient_ends(inputs.reset, inputs.cut, t, b):
                grads.joined[b, :] = 0
                grads.c[b, :] = 0
                grads.memory[b] = 0


@part
def _memory(
    t: int, b: int, inputs: Inputs, record: Record, memory: Array, above: Result, grads: Gradients, room: Room
) -> None:
    """Gradients of v^r and the meta error -> of keys, values, q, beta and M; `memory` becomes that before step t."""
    size = record.c.shape[2]
    grad, to_read = grads.memory[b], grads.joined[b, size:]
    one = grad.dtype.type(1)
    add(to_read, above.joined[t, b, size:])
    _through_read(t, b, record, memory, to_read, above.errors[t, b] * inputs.scale[1], grad, room)
    beta = record.beta[t, b, 0]
    to_step = _through_write(t, b, beta * inputs.scale[0], record, memory, grad, room)
    grads.rate[t, b, 0] = to_step * inputs.scale[0] * beta * (one - beta)
    if record.targets.shape[3] > 0:
        _through_local(room, grads.targets[t, b])
    else:
        _through_gradient(t, b, record, memory, grad, room)
    _through_recall(t, b, record, memory, grad, room)


@part
def _through_read(
    t: int, b: int, record: Record, memory: Array, to_read: Array, to_error: float, grad: Array, room: Room
) -> None:
    """Gradients of v^r [d] and the squared errors -> of keys, values and M, through f with M after the write."""
    heads, width = record.values.shape[2:]
    one = to_read.dtype.type(1)
    keys, z, y = record.keys[t, b], record.found[t, b], room.y
    # v^r = mean of z^3 of the read keys, error = sum of (z^3 of the write keys - v^w)^2
    for n in range(heads):
        for k in range(width):
            y[n, k] = (one + one) * to_error * (z[2, n, k] - record.values[t, b, n, k])
            room.to_values[n, k] = -y[n, k]
            y[heads + n, k] = to_read[k] / to_read.dtype.type(heads)
    # z^l = tanh(M^l z^{l-1}), z^3 without tanh
    for level in range(2, -1, -1):
        add_outer(grad[level], one, y, keys if level == 0 else z[level - 1])
        turned_times(memory[level], y, room.below if level > 0 else room.to_keys)
        if level > 0:
            for n in range(2 * heads):
                for k in range(width):
                    y[n, k] = room.below[n, k] * (one - z[level - 1, n, k] * z[level - 1, n, k])


@part
def _through_write(t: int, b: int, step: float, record: Record, memory: Array, grad: Array, room: Room) -> float:
    """Gradient of M after the write -> of D and z; return that of the step, and undo the write. M_t = M_{t-1} - step
    sum_heads D z^T: dD = - step dM z, dz = - step dM^T D, dstep = - sum of D (dM z)."""
    heads, width = record.values.shape[2:]
    keys, d = record.keys[t, b], record.errors[t, b]
    total = d.dtype.type(0)
    for level in range(3):
        z = keys[:heads] if level == 0 else record.written[t, b, level - 1]
        times(grad[level], z, room.to_d[level])
        turned_times(grad[level], d[level], room.to_z[level])
        for n in range(heads):
            total -= dot(d[level, n], room.to_d[level, n])
            for k in range(width):
                room.to_d[level, n, k] *= -step
                room.to_z[level, n, k] *= -step
        add_outer(memory[level], step, d[level], z)
    return total


@part
def _through_local(room: Room, targets: Array) -> None:
    """D^l = z^l - q^l(v^w): gradient of D -> of z, and of q in `targets` [H, 3 d]."""
    _, heads, width = room.to_d.shape
    for level in range(3):
        for n in range(heads):
            for k in range(width):
                targets[n, level * width + k] = -room.to_d[level, n, k]
                if level < 2:
                    room.to_z[level + 1, n, k] += room.to_d[level, n, k]


@part
def _through_gradient(t: int, b: int, record: Record, memory: Array, grad: Array, room: Room) -> None:
    """D^l = (1 - (z^l)^2) * u,  u = (M^{l+1})^T D^{l+1},  D^3 = z^3 - v^w: gradient of D -> of z, v^w and M."""
    _, heads, width = room.to_d.shape
    one = grad.dtype.type(1)
    to_u, above, d = room.below[:heads], room.below[heads:], record.errors[t, b]
    for level in range(2):
        z, u = record.written[t, b, level], record.back[t, b, level]
        for n in range(heads):
            for k in range(width):
                to_u[n, k] = room.to_d[level, n, k] * (one - z[n, k] * z[n, k])
                room.to_z[level + 1, n, k] -= (one + one) * room.to_d[level, n, k] * u[n, k] * z[n, k]
        add_outer(grad[level + 1], one, d[level + 1], to_u)
        times(memory[level + 1], to_u, above)
        for n in range(heads):
            add(room.to_d[level + 1, n], above[n])
    for n in range(heads):
        for k in range(width):
            room.to_values[n, k] -= room.to_d[2, n, k]


@part
def _through_recall(t: int, b: int, record: Record, memory: Array, grad: Array, room: Room) -> None:
    """Gradients of z^l of the write keys, with M before the write -> of the write keys; only D^3 depends on z^3."""
    _, heads, width = room.to_d.shape
    one = grad.dtype.type(1)
    y, below = room.to_d[2], room.below[:heads]
    for level in range(2, -1, -1):
        z = record.keys[t, b, :heads] if level == 0 else record.written[t, b, level - 1]
        add_outer(grad[level], one, y, z)
        turned_times(memory[level], y, below)
        for n in range(heads):
            add(room.to_z[level, n], below[n])
            if level == 0:
                add(room.to_keys[n], room.to_z[0, n])
            else:
                for k in range(width):
                    y[n, k] = room.to_z[level, n, k] * (one - z[n, k] * z[n, k])


@part
def _heads(
    t: int, b: int, w: Leaves, record: Record, to_keys: Array, to_values: Array, more: Array, grads: Gradients
) -> None:
    """Gradients of beta', k^w, v^w and k^r -> of W_v h + b_v."""
    heads, width = record.values.shape[2:]
    out = grads.heads[t, b]
    above = np.empty_like(out)
    for k in range(width):
        above[k] = grads.rate[t, b, 0] * w.rate[k]
    for n in range(heads):
        at = width * (1 + 3 * n)
        for k in range(width):
            above[at + k] = to_keys[n, k]
            above[at + width + k] = to_values[n, k] + more[n, k]
            above[at + 2 * width + k] = to_keys[heads + n, k]
    if len(w.norm_gain) > 0:
        normal, spread = record.normal[t, b], record.spread[t, b, 0]
        to_gain, to_bias = grads.norm_gain, grads.norm_bias
        normalize_backward(above, normal, spread, w.norm_gain, out, to_gain, to_bias)
    else:
        out[:] = 0
        add_through_tanh(out, above, record.heads[t, b])
