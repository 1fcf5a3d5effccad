"""Arrays of the compiled loops of LSTM, ConvLSTM and GRU.

Shapes: T steps, B environments, P positions of the image (1 without an image), K elements of a kernel (likewise), C
units per position, G gates per unit (LSTM 4, GRU 3).
"""

from typing import NamedTuple

import numpy as np

from ..elementwise import Array, add, copy, part

ONE_PLACE = np.zeros((1, 1), np.int64)  # `Inputs.places` without an image


class Inputs(NamedTuple):
    """Inputs of the loop and the state before it."""

    gates: Array  # [T, B, P, G C]: the inputs' contribution to the gates, biases included
    bias: Array  # [C]: GRU's b_hn, which the reset gate scales; empty for the LSTM
    places: Array  # int [P, K]: position under each kernel element at each position; -1 is zero padding.
    reset: Array  # bool [T, B]
    h: Array  # [B, P, C]
    c: Array  # [B, P, C]: the LSTM's cells; [B, P, 0] for the GRU


class Record(NamedTuple):
    """Activations saved by the forward pass for the backward pass."""

    seen: Array  # [T, B P, K C]: the neighborhoods of h before each step, after resets; without an image, h itself
    c: Array  # [T, B P, C]: the LSTM's cells before each step, after resets; [T, B P, 0] for the GRU
    gates: Array  # [T, B P, G C]: i, f, g, o, or r, z, n
    inner: Array  # [T, B P, C]: tanh of the LSTM's cells after each step; GRU's h_n = W_hn h + b_hn


class Gradients(NamedTuple):
    """Gradients that the backward pass writes."""

    gates: Array  # [T, B P, G C]: of the gates before their nonlinearities
    products: Array  # [T, B P, G C]: of W_h h; for the LSTM, the same array
    seen: Array  # [B P, K C]: of the neighborhoods of one step
    h: Array
    c: Array  # [B P, C]: of the last state, overwritten with those of the first


def make_record(steps: int, batch: int, inputs: Inputs) -> Record:
    """Allocate a record of this number of steps and environments."""
    places, kernel = inputs.places.shape
    size = inputs.h.shape[2]
    widths = kernel * size, inputs.c.shape[2], inputs.gates.shape[3], size
    return Record(*(np.empty((steps, batch * places, width), inputs.h.dtype) for width in widths))


@part
def look(h: Array, places: Array, out: Array) -> None:
    """Write the neighborhood of every position of one image: h [P, C] -> `out` [P, K C]."""
    channels = h.shape[1]
    for p in range(len(places)):
        for k in range(places.shape[1]):
            place, into = places[p, k], out[p, k * channels : (k + 1) * channels]
            if place < 0:
                into[:] = 0
            else:
                copy(h[place], into)


@part
def look_backward(grad_seen: Array, places: Array, grad_h: Array) -> None:
    """The adjoint of `look`: [P, K C] -> `grad_h` [P, C], which is overwritten."""
    channels = grad_h.shape[1]
    grad_h[:] = 0
    for p in range(len(places)):
        for k in range(places.shape[1]):
            if places[p, k] >= 0:
                add(grad_h[places[p, k]], grad_seen[p, k * channels : (k + 1) * channels])
