"""Arrays of the compiled loop of ConvLSTM.

Shapes: T steps, B environments, P places of the grid, C hidden channels, K places of the kernel.
"""

from typing import NamedTuple

from ..elementwise import Array


class Inputs(NamedTuple):
    """Inputs of the loop and the state before it."""

    gates: Array  # [T, B, P, 4 C]: the inputs' share of the gates, biases included
    places: Array  # int [P, K]: input place of each place of the kernel; -1 is the zero padding.
    reset: Array  # bool [T, B]
    h: Array
    c: Array  # [B, P, C]


class Record(NamedTuple):
    """Activations saved by the forward pass for the backward pass."""

    seen: Array  # [T, B P, K C]: the neighborhoods of h before each step, after resets
    c: Array  # [T, B P, C]: the cells before each step, after resets
    gates: Array  # [T, B P, 4 C]: i, f, g, o
    inner: Array  # [T, B P, C]: tanh of the cells after each step


class Gradients(NamedTuple):
    """Gradients that the backward pass writes."""

    gates: Array  # [T, B P, 4 C]: of the gates before squashing
    seen: Array  # [B P, K C]: of the neighborhoods of one step
    h: Array
    c: Array  # [B P, C]: of the last state, overwritten by those of the first
