"""One step of fast weight memory for acting on a CPU (equations in `fwm.FWM`)."""

import numpy as np

from ....base.compiled import compiled
from .elementwise import Array, copy, dot, normalize, part, sigmoid, tanh


@part
def _apply(memory: Array, key1: Array, key2: Array, room: Array, out: Array) -> None:
    """out [d] = F (key1 (x) key2), F [d, d d]: a sum over the first axis in `room` [d d], then over the second axis."""
    size = len(out)
    room[:] = 0
    for p in range(size):
        weight = key1[p]
        row = memory[p]
        for c in range(len(room)):
            room[c] += weight * row[c]
    out[:] = 0
    for q in range(size):
        weight = key2[q]
        row = room[q * size : (q + 1) * size]
        for c in range(size):
            out[c] += weight * row[c]


@compiled("reassoc", "nsz")
def write_and_read(
    before: Array, reset: Array, writes: Array, rates: Array, reads: Array, squashed: int, after: Array, out: Array
) -> None:
    """Compute memories `after` [B, d, d d] and n^R [B, d] from memories `before`, cleared where `reset` (bool [B]) is
    set, one environment at a time in the CPU's nearest cache. `writes` [B, 3 d + 1], overwritten: keys and value before
    tanh, beta before the sigmoid; `rates` [2]: the scale of writes and the bias of beta; `reads` [B, (1 + R) d],
    overwritten: the first query and the keys of the hops, the last `squashed` values before tanh."""
    size = out.shape[1]
    one = out.dtype.type(1)
    room, old = np.empty(size * size, out.dtype), np.empty(size, out.dtype)
    for b in range(len(out)):
        memory, new, query = after[b], writes[b], out[b]
        tanh(new[: 3 * size], new[: 3 * size])
        new[3 * size] += rates[1]
        sigmoid(new[3 * size :])
        key1, key2, value, rate = new[:size], new[size : 2 * size], new[2 * size : 3 * size], rates[0] * new[3 * size]
        for p in range(size):
            if reset[b]:
                memory[p, :] = 0
            else:
                copy(before[b, p], memory[p])
        _apply(memory, key1, key2, room, old)
        for q in range(size):
            for c in range(size):
                room[q * size + c] = key2[q] * rate * (value[c] - old[c])
        square = one - one
        for p in range(size):
            row, weight = memory[p], key1[p]
            for c in range(len(room)):
                row[c] += weight * room[c]
            square += dot(row, row)
        if not square <= one:  # also nan
            scale = one / np.sqrt(square)
            for p in range(size):
                row = memory[p]
                for c in range(len(room)):
                    row[c] *= scale
        hops = reads[b]
        tail = hops[len(hops) - squashed :]
        tanh(tail, tail)
        copy(hops[:size], query)
        for start in range(size, len(hops), size):
            _apply(memory, query, hops[start : start + size], room, old)
            copy(old, query)
            normalize(query)
