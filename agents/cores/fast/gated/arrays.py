"""Arrays of the compiled loops of LSTM and GRU.

Shapes: T steps, B environments, H units, G gates of each (LSTM 4, GRU 3).
"""

from typing import NamedTuple

from ..elementwise import Array


class Inputs(NamedTuple):
    """Inputs of the loop and the state before it."""

    gates: Array
    """[T, B, G H]: the inputs' share of the gates, biases included."""
    bias: Array
    """[H]: GRU's b_hn, which the reset gate scales; empty for the LSTM."""
    reset: Array
    """bool [T, B]."""
    h: Array
    """[B, H]."""
    c: Array
    """[B, H]: the LSTM's cells; [B, 0] for the GRU."""


class Record(NamedTuple):
    """Activations saved by the forward pass for the backward pass."""

    h: Array
    """[T, B, H], before each step, after resets."""
    c: Array
    """[T, B, H]: the LSTM's cells likewise; [T, B, 0] for the GRU."""
    gates: Array
    """[T, B, G H]: i, f, g, o, or r, z, n."""
    inner: Array
    """[T, B, H]: tanh of the LSTM's cells after each step; GRU's h_n = W_hn h + b_hn."""


class Gradients(NamedTuple):
    """Gradients that the backward pass writes."""

    gates: Array
    """[T, B, G H]: of the gates before squashing."""
    products: Array
    """[T, B, G H]: of W_h h; for the LSTM the same array."""
    h: Array
    c: Array
    """[B, H]: of the last state, overwritten by those of the first."""
