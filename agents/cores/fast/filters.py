"""Chains of low-pass filters step by step in compiled code, and their adjoint, for a CPU.

A step of a filter is two operations per value, far cheaper than loading the value from memory: every value
is read and written once. Environments do not affect each other, and nothing from before a reset remains.

Shapes: T steps, B environments, k filters in a chain, C channels. The channels come in k groups of equal width; group m
is observed at the end of filter m, so it passes filters 0..m of the chain (or filter m alone, if not `in_a_row`).
"""

import numpy as np

from ....base.compiled import compiled
from .elementwise import Array

_filters = compiled()


@_filters
def see(rows: Array, start: Array, reset: Array, gains: Array, decays: Array, in_a_row: bool, bias: Array) -> None:
    """Overwrite inputs with relu(group m of z^m_t + bias); z^n_t = gain_n z^{n-1}_t + decay_n z^n_{t-1}.

    rows [T, B, C] contains the inputs z^{-1}_t; start z_{-1} [B, k, C], reset bool [T, B]: z_{t-1} = 0 there, gains and
    decays [k], bias [C]."""
    steps, batch, channels = rows.shape
    group = channels // len(gains)
    zero = rows.dtype.type(0)  # a plain 0 would make all of it float64
    for b in range(batch):
        z = start[b].copy()
        for t in range(steps):
            if reset[t, b]:
                z[:] = zero
            for n in range(len(gains)):
                # All loops over values begin at 0, since numba uses vector instructions only then.
                first = n * group
                end = channels if in_a_row else first + group
                y, own, gain, decay = rows[t, b, first:end], z[n, first:end], gains[n], decays[n]
                for c in range(len(y)):
                    value = gain * y[c] + decay * own[c]
                    own[c] = value
                    y[c] = value
            y = rows[t, b]
            for c in range(channels):
                value = y[c] + bias[c]
                y[c] = zero if value <= zero else value  # nan stays nan


@_filters
def see_backward(
    grad: Array, views: Array, reset: Array, gains: Array, decays: Array, in_a_row: bool, out: Array, bias: Array
) -> Array:
    """The adjoint of `see`: the same filters backwards in time and down the chain. grad and seen [T, B, C] -> gradients
    of the inputs in `out` [T, B, C], added to `bias` [C], and of start [B, k, C]."""
    steps, batch, channels = grad.shape
    group = channels // len(gains)
    zero = grad.dtype.type(0)
    start = np.zeros((batch, len(gains), channels), grad.dtype)
    for b in range(batch):
        w = start[b]  # contribution of step t + 1 to z_t
        for t in range(steps - 1, -1, -1):
            x, g, y = out[t, b], grad[t, b], views[t, b]
            for c in range(channels):
                value = g[c]
                value = zero if y[c] <= zero else value
                x[c] = value
                bias[c] += value
            for n in range(len(gains) - 1, -1, -1):
                first = n * group
                end = channels if in_a_row else first + group
                x, own, gain, decay = out[t, b, first:end], w[n, first:end], gains[n], decays[n]
                for c in range(len(x)):
                    value = x[c] + own[c]
                    own[c] = decay * value
                    x[c] = gain * value
            if reset[t, b]:
                w[:] = zero
    return start


@_filters
def smooth_backward(grad: Array, views: Array, cut: Array, decays: Array, out: Array) -> Array:
    """The adjoint of y_t = relu(z_t + bias), z_t = x_t + decay z_{t-1}; at a cut (bool [T, B]) z_{t-1} is constant.
    grad and seen [T, B, C]: the first channels and the first of decays are used. Results: dx in `out` [T, B, V],
    dz_{-1} [B, V]."""
    steps, batch, group = out.shape
    zero = grad.dtype.type(0)
    start = np.zeros((batch, group), grad.dtype)
    decay = decays[0]
    for b in range(batch):
        w = start[b]
        for t in range(steps - 1, -1, -1):
            g, y, x = grad[t, b], views[t, b], out[t, b]
            for c in range(group):
                value = g[c]
                x[c] = w[c] + (zero if y[c] <= zero else value)
                w[c] = decay * x[c]
            if cut[t, b]:
                w[:] = 0
    return start


@_filters
def hold(inputs: Array, reset: Array, gains: Array, decays: Array, in_a_row: bool, pools: Array) -> None:
    """Update `pools` [B, k, P], the filters' values before the inputs [T, B, P], to their values afterwards. Pools
    before an environment's last reset are irrelevant and not read."""
    steps, batch, _ = inputs.shape
    for b in range(batch):
        begin = steps
        while begin > 0:
            begin -= 1
            if reset[begin, b]:
                pools[b] = 0
                break
        for t in range(begin, steps):
            for n in range(len(gains)):
                below = pools[b, n - 1] if in_a_row and n > 0 else inputs[t, b]
                own, gain, decay = pools[b, n], gains[n], decays[n]
                for c in range(len(own)):
                    own[c] = gain * below[c] + decay * own[c]
