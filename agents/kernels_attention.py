"""What a relational memory core does between its products of matrices, and the gradients of it, for a CPU.

Every function goes through a batch element by element, so that one element's numbers stay in the processor's cache
from the first operation to the last, and no element's result depends on which others are in the batch.

Shapes: B elements; R rows of F numbers; E more rows, of which only keys and values matter; Q <= R rows that are wanted;
H heads of width V = F / H; keys of size K; D = H (2 K + V), per head query, key and value. "Normal" numbers are
those of a LayerNorm before its gain and offset.
"""

import math

import numpy as np

from .native import Array, compiled

EPS = 1e-5
"""That of `torch.nn.LayerNorm`."""

_sums = compiled("reassoc", "nsz")
_part = compiled("reassoc", "nsz", inline=True)


@_sums
def attend(
    projected: Array,
    other: Array,
    rows: Array,
    gain: Array,
    offset: Array,
    sum_gain: Array,
    sum_offset: Array,
    rstd: Array,
    weights: Array,
    normal: Array,
    sum_rstd: Array,
    out: Array,
) -> None:
    """LayerNorm(rows + attention) of the first Q rows, with the attention's q, k, v = LayerNorm(projected).

    projected [B, R, D] (left as normal numbers), other [B, E, D] (q, k, v ready), rows [B, R, F]; written are
    rstd [B, R], weights [B, H, Q, R + E] of the attention, normal and out [B, Q, F], sum_rstd [B, Q].
    """
    batch, own, size = projected.shape
    heads, queries, every = weights.shape[1:]
    width = out.shape[2] // heads
    qkv = np.empty((every, size), projected.dtype)  # not kept: bringing it back would take longer than making it
    for b in range(batch):
        for r in range(own):
            rstd[b, r] = _normalise(projected[b, r])
        _fill(qkv, projected[b], other[b], gain, offset)
        for h in range(heads):
            _attend_head(qkv, rows[b], h * (size // heads), h * width, width, weights[b, h], normal[b])
        for i in range(queries):
            sum_rstd[b, i] = _normalise(normal[b, i])
            _scale(normal[b, i], sum_gain, sum_offset, out[b, i])


@_sums
def attend_backward(
    grad: Array,
    more_grad: Array,
    projected: Array,
    other: Array,
    gain: Array,
    offset: Array,
    sum_gain: Array,
    rstd: Array,
    weights: Array,
    normal: Array,
    sum_rstd: Array,
    grad_sum: Array,
    grad_projected: Array,
    grad_other: Array,
    grad_gain: Array,
    grad_offset: Array,
    grad_sum_gain: Array,
    grad_sum_offset: Array,
) -> None:
    """The adjoint of `attend`, for the gradient grad + more_grad [B, Q, F] of its result.

    Written are the gradients of rows + attention [B, Q, F], projected [B, R, D] and other [B, E, D]; those of gains and
    offsets are added to.
    """
    batch, own, size = projected.shape
    heads, queries, every = weights.shape[1:]
    width = grad.shape[2] // heads
    qkv = np.empty((every, size), projected.dtype)
    grad_qkv = np.empty_like(qkv)
    total = np.empty_like(grad[0, 0])
    for b in range(batch):
        for i in range(queries):
            total[:] = grad[b, i]
            _add(total, total.dtype.type(1), more_grad[b, i])
            _normalise_backward(
                total, normal[b, i], sum_rstd[b, i], sum_gain, grad_sum[b, i], grad_sum_gain, grad_sum_offset
            )
        _fill(qkv, projected[b], other[b], gain, offset)
        grad_qkv[:] = 0
        for h in range(heads):
            _attend_head_backward(grad_sum[b], qkv, h * (size // heads), h * width, width, weights[b, h], grad_qkv)
        for r in range(own):
            _normalise_backward(
                grad_qkv[r], projected[b, r], rstd[b, r], gain, grad_projected[b, r], grad_gain, grad_offset
            )
        for e in range(every - own):
            grad_other[b, e, :] = grad_qkv[own + e]


@_sums
def add_norm(x: Array, y: Array, gain: Array, offset: Array, rstd: Array, out: Array) -> None:
    """out = LayerNorm(x + y) on rows [R, F]; x is left as the normal numbers, rstd [R]."""
    for r in range(len(x)):
        _add(x[r], x.dtype.type(1), y[r])
        rstd[r] = _normalise(x[r])
        _scale(x[r], gain, offset, out[r])


@_sums
def norm_backward(
    grad: Array, normal: Array, rstd: Array, gain: Array, out: Array, grad_gain: Array, grad_offset: Array
) -> None:
    """Gradient of a LayerNorm's result, rows [R, F] -> that of its argument in `out`; adds to gain's and offset's."""
    for r in range(len(grad)):
        _normalise_backward(grad[r], normal[r], rstd[r], gain, out[r], grad_gain, grad_offset)


@_sums
def tanh(x: Array, out: Array) -> None:
    """out = tanh(x) on rows [R, F], in float32 to 4e-7."""
    for r in range(len(x)):
        _tanh(x[r], out[r])


@_sums
def mix(memory: Array, candidate: Array, gates: Array, out: Array) -> None:
    """out = i tanh(candidate) + f memory on rows [R, F]; candidate is left squashed.

    The gates [R, 2 G] are i and f, G = 1 or F.
    """
    half = gates.shape[1] // 2
    new = np.empty_like(candidate[0])
    for r in range(len(memory)):
        _tanh(candidate[r], new)
        candidate[r, :] = new
        old, y = memory[r], out[r]
        if half == 1:
            i, f = gates[r, 0], gates[r, 1]
            for c in range(len(y)):
                y[c] = i * new[c] + f * old[c]
        else:
            own_i, own_f = gates[r, :half], gates[r, half:]
            for c in range(len(y)):
                y[c] = own_i[c] * new[c] + own_f[c] * old[c]


@_sums
def mix_backward(
    grad: Array, memory: Array, candidate: Array, gates: Array, grad_memory: Array, grad_candidate: Array, out: Array
) -> None:
    """The adjoint of `mix`: gradients of memory and candidate, and in `out` of the gates before their sigmoid."""
    half = gates.shape[1] // 2
    one = grad.dtype.type(1)
    for r in range(len(grad)):
        above, old, new = grad[r], memory[r], candidate[r]
        to_old, to_new = grad_memory[r], grad_candidate[r]
        if half == 1:
            i, f = gates[r, 0], gates[r, 1]
            for c in range(len(above)):
                to_old[c] = f * above[c]
                to_new[c] = i * above[c] * (one - new[c] * new[c])
            out[r, 0] = _dot(above, new) * i * (one - i)
            out[r, 1] = _dot(above, old) * f * (one - f)
        else:
            own_i, own_f = gates[r, :half], gates[r, half:]
            to_i, to_f = out[r, :half], out[r, half:]
            for c in range(len(above)):
                to_old[c] = own_f[c] * above[c]
                to_new[c] = own_i[c] * above[c] * (one - new[c] * new[c])
                to_i[c] = above[c] * new[c] * own_i[c] * (one - own_i[c])
                to_f[c] = above[c] * old[c] * own_f[c] * (one - own_f[c])


@_sums
def add_through_tanh(total: Array, grad: Array, squashed: Array) -> None:
    """total += grad (1 - squashed^2), on rows [R, F]: the gradient through squashed = tanh(x)."""
    one = grad.dtype.type(1)
    for r in range(len(total)):
        x, g, y = total[r], grad[r], squashed[r]
        for c in range(len(x)):
            x[c] += g[c] * (one - y[c] * y[c])


@_part
def _fill(qkv: Array, normal: Array, other: Array, gain: Array, offset: Array) -> None:
    """q, k, v of all rows [R + E, D]."""
    for r in range(len(normal)):
        _scale(normal[r], gain, offset, qkv[r])
    for e in range(len(other)):
        qkv[len(normal) + e, :] = other[e]


@_part
def _attend_head(qkv: Array, rows: Array, first: int, column: int, width: int, weights: Array, out: Array) -> None:
    """One head's columns of rows + A, with A = weights v and weights [Q, R + E] = softmax(q k^T / sqrt(K)).

    The head's q, k, v begin at column `first` of qkv, its share of a row at `column`.
    """
    queries, every = weights.shape
    keys = (qkv.shape[1] * width // out.shape[1] - width) // 2
    values, end = first + 2 * keys, first + 2 * keys + width
    one = qkv.dtype.type(1)  # a plain number would make all of it float64
    scale = one / np.sqrt(qkv.dtype.type(keys))
    for i in range(queries):
        weight, y = weights[i], out[i, column : column + width]
        for j in range(every):
            weight[j] = scale * _dot(qkv[i, first : first + keys], qkv[j, first + keys : values])
        _softmax(weight)
        y[:] = rows[i, column : column + width]
        for j in range(every):
            _add(y, weight[j], qkv[j, values:end])


@_part
def _attend_head_backward(
    grad: Array, qkv: Array, first: int, column: int, width: int, weights: Array, grad_qkv: Array
) -> None:
    """The adjoint of `_attend_head`: adds to the gradient of q, k and v."""
    queries, every = weights.shape
    keys = (qkv.shape[1] * width // grad.shape[1] - width) // 2
    values, end = first + 2 * keys, first + 2 * keys + width
    one = qkv.dtype.type(1)
    scale = one / np.sqrt(qkv.dtype.type(keys))
    grad_weight = np.empty_like(weights[0])
    for i in range(queries):
        weight, above = weights[i], grad[i, column : column + width]
        mean = one - one
        for j in range(every):
            grad_weight[j] = _dot(above, qkv[j, values:end])
            mean += weight[j] * grad_weight[j]
        for j in range(every):
            score = scale * weight[j] * (grad_weight[j] - mean)
            _add(grad_qkv[i, first : first + keys], score, qkv[j, first + keys : values])
            _add(grad_qkv[j, first + keys : values], score, qkv[i, first : first + keys])
            _add(grad_qkv[j, values:end], weight[j], above)


@_part
def _normalise(x: Array) -> float:
    """x <- (x - mean) / standard deviation; returns 1 / standard deviation."""
    one = x.dtype.type(1)
    width = x.dtype.type(len(x))
    total = one - one
    for c in range(len(x)):
        total += x[c]
    mean = total / width
    total = one - one
    for c in range(len(x)):
        total += (x[c] - mean) * (x[c] - mean)
    rstd = one / np.sqrt(total / width + x.dtype.type(EPS))
    for c in range(len(x)):
        x[c] = (x[c] - mean) * rstd
    return rstd


@_part
def _scale(normal: Array, gain: Array, offset: Array, out: Array) -> None:
    for c in range(len(out)):
        out[c] = normal[c] * gain[c] + offset[c]


@_part
def _normalise_backward(
    grad: Array, normal: Array, rstd: float, gain: Array, out: Array, grad_gain: Array, grad_offset: Array
) -> None:
    width = grad.dtype.type(len(grad))
    mean = width - width
    slope = width - width
    for c in range(len(grad)):
        mean += grad[c] * gain[c]
        slope += grad[c] * gain[c] * normal[c]
    mean /= width
    slope /= width
    for c in range(len(grad)):
        out[c] = rstd * (grad[c] * gain[c] - mean - slope * normal[c])
    for c in range(len(grad)):
        grad_gain[c] += grad[c] * normal[c]
        grad_offset[c] += grad[c]


@_part
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


@_part
def _dot(x: Array, y: Array) -> float:
    total = x.dtype.type(0)
    for c in range(len(x)):
        total += x[c] * y[c]
    return total


@_part
def _add(total: Array, weight: float, x: Array) -> None:
    for c in range(len(total)):
        total[c] += weight * x[c]


@_part
def _tanh(x: Array, out: Array) -> None:
    if x.itemsize > 4:
        for c in range(len(x)):
            out[c] = math.tanh(x[c])
        return
    # x p(x^2) / q(x^2) fitted to 2e-8 (relative) up to 8.5, from where on float32 cannot tell it from 1.
    one = np.float32(1)
    limit = np.float32(8.5)
    for c in range(len(x)):
        v = x[c]
        v = limit if v > limit else v
        v = -limit if v < -limit else v
        s = v * v
        p = np.float32(2.12507184187416e-05) + np.float32(1.4268718651067047e-08) * s
        p = one + s * (np.float32(0.13413232564926147) + s * (np.float32(0.0035340087488293648) + s * p))
        q = np.float32(0.0003348833997733891) + np.float32(8.144926937347918e-07) * s
        q = one + s * (np.float32(0.4674655497074127) + s * (np.float32(0.026022683829069138) + s * q))
        out[c] = v * p / q
