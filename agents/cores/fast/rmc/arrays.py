"""The arrays that the relational memory core's compiled unroll works on.

Shapes: T steps, B environments, N slots of F numbers, H heads with q, k, v of D numbers in all, L layers of the MLP,
2 G numbers for the gates (G = 0: none).
"""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..arrays import Array


class RMCShape(NamedTuple):
    """Sizes that the arrays alone do not tell. `gates` is the number of gates per slot: 0, 1 or the slot's width."""

    slots: int
    heads: int
    mlp_layers: int
    gates: int


class Vectors(NamedTuple):
    """Biases, and gains and offsets of norms."""

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


class Weights(NamedTuple):
    """Parameters. Matrices are [outputs, inputs], or the other way round where a function is told so."""

    qkv: Array
    """[D, F]."""
    mlp: Array
    """[L, F, F]."""
    gates: Array
    """[2 G, F]."""
    vectors: Vectors


class Inputs(NamedTuple):
    """Inputs of the loop."""

    row: Array
    """[T, B, F]: the projected input."""
    gates: Array
    """[T, B, 2 G]: the input's share."""
    reset: Array
    """bool [T, B]."""
    initial: Array
    """[N, F]."""
    state: Array
    """[B, N, F]."""


class Record(NamedTuple):
    """Activations saved by the forward pass for the backward pass."""

    rows: Array
    """[T, B, N + 1, F]: the memory before each step, after resets, and the projected input."""
    projected: Array
    """[T, B, N + 1, D], normal numbers."""
    projected_rstd: Array
    """[T, B, N + 1]."""
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
    """Gradients written by the backward pass."""

    row: Array
    gates_input: Array
    state: Array
    """As in Inputs."""
    projected: Array
    """[T, B, N + 1, D]: of the product with the matrix of q, k and v."""
    mlp: Array
    """[L, T, B, N, F]: of the products of the MLP."""
    gates: Array
    """[T, B, N, 2 G]."""
    sums: Vectors
    """Of all steps, in arrays [groups, ...]: every group of environments has its own entry."""


def make_record(shape: RMCShape, steps: int, batch: int, given: Inputs, size: int) -> Record:
    """Room for a record; `size` is D."""
    slots, width = given.initial.shape

    def room(*sizes: int) -> Array:
        return np.empty((steps, batch, *sizes), given.state.dtype)

    gated = (slots, width) if shape.gates else (slots, 0)
    return Record(
        rows=room(slots + 1, width),
        projected=room(slots + 1, size),
        projected_rstd=room(slots + 1),
        attention=room(shape.heads, slots, slots + 1),
        attended=room(slots, width),
        attended_rstd=room(slots),
        hidden=np.empty((shape.mlp_layers + 1, steps, batch, slots, width), given.state.dtype),
        hidden_rstd=room(slots),
        candidate=room(*gated),
        squashed=room(*gated),
        gates=room(slots, 2 * shape.gates),
    )


def make_gradients(given: Inputs, weights: Weights, record: Record, grad_last: Tensor, groups: int) -> Gradients:
    """Room for gradients, with that of the last memory in `state`, and sums of so many groups at zero."""

    def zeros(parameter: Array) -> Array:
        return np.zeros((groups, *parameter.shape), parameter.dtype)

    return Gradients(
        row=np.empty_like(given.row),
        gates_input=np.empty_like(given.gates),
        state=grad_last.contiguous().numpy().copy(),
        projected=np.empty_like(record.projected),
        mlp=np.empty_like(record.hidden[1:]),
        gates=np.empty_like(record.gates),
        sums=Vectors(*map(zeros, weights.vectors)),
    )
