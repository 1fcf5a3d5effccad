"""The tensors and arrays that the relational memory core's compiled unroll works on.

Shapes: T steps, B environments, N slots of F values, H heads with q, k, v of D values in all, L layers of the MLP,
2 G values for the gates (G = 0: none), P places of an image with keys and values of E values in all (P = 0: none).
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from ..elementwise import Array

Numbers: TypeAlias = Any  # A tensor, or the array of its memory for compiled functions


class Leaves(NamedTuple):
    """Everything that the unroll depends on and that gradients are computed for; matrices are [outputs, inputs]."""

    row: Numbers  # [T, B, F]: the projected input
    gates_input: Numbers  # [T, B, 2 G]: its share of the gates
    places: Numbers  # [T, B, P, E]: per head keys and values of the image's places
    memory: Numbers  # [B, N, F], before the first step
    qkv: Numbers  # [D, F]
    mlp: Numbers  # [L, F, F]
    gates: Numbers  # [2 G, F]: the memory's share of the gates
    qkv_bias: Numbers  # [D], as the gain and the offset
    qkv_gain: Numbers
    qkv_offset: Numbers
    attention_gain: Numbers  # [F], as the three below
    attention_offset: Numbers
    mlp_gain: Numbers
    mlp_offset: Numbers
    mlp_bias: Numbers  # [L, F]
    gates_bias: Numbers  # [2 G]


VECTORS = Leaves._fields[7:]  # Biases, and gains and offsets of norms


class Resets(NamedTuple):
    """Resets and the memory after a reset."""

    at: Array  # bool [T, B]
    memory: Array  # [N, F]


class Record(NamedTuple):
    """Activations saved by the forward pass for the backward pass."""

    rows: Array  # [T, B, N + 1, F]: the memory before each step, after resets, and the projected input
    projected: Array  # [T, B, N + 1, D], normalized values
    projected_rstd: Array  # [T, B, N + 1]
    attention: Array  # [T, B, H, N, N + 1 + P]: weights
    attended: Array  # [T, B, N, F], normalized values of memory + attention
    attended_rstd: Array  # [T, B, N]
    hidden: Array
    """[L + 1, T, B, N, F]: inputs of each layer of the MLP, then normalized values of its residual sum."""
    hidden_rstd: Array  # [T, B, N]
    candidate: Array  # [T, B, N, F]: tanh of the gates' candidate
    squashed: Array  # [T, B, N, F]: tanh of the memory
    gates: Array  # [T, B, N, 2 G]


def make_record(leaves: Leaves, heads: int, steps: int, batch: int) -> Record:
    """Allocate a record of this number of steps and environments."""
    slots, width = leaves.memory.shape[1:]
    layers, gates, size = len(leaves.mlp), len(leaves.gates_bias), len(leaves.qkv_bias)
    gated = (slots, width if gates else 0)

    def room(*sizes: int) -> Array:
        return np.empty((steps, batch, *sizes), leaves.memory.dtype)

    return Record(
        rows=room(slots + 1, width),
        projected=room(slots + 1, size),
        projected_rstd=room(slots + 1),
        attention=room(heads, slots, slots + 1 + leaves.places.shape[2]),
        attended=room(slots, width),
        attended_rstd=room(slots),
        hidden=np.empty((layers + 1, steps, batch, slots, width), leaves.memory.dtype),
        hidden_rstd=room(slots),
        candidate=room(*gated),
        squashed=room(*gated),
        gates=room(slots, gates),
    )


def make_gradients(leaves: Leaves, record: Record, grad_last: Tensor, groups: int) -> Leaves:
    """Allocate what the backward pass writes; at first `memory` is the gradient of the last memory.

    In the place of a matrix is the gradient of its products: `qkv` [T, B, N + 1, D], `mlp` [L, T, B, N, F], `gates`
    [T, B, N, 2 G]. Of a vector every group of environments has its own sum, [groups, ...].
    """
    sums = {name: np.zeros((groups, *getattr(leaves, name).shape), record.rows.dtype) for name in VECTORS}
    return Leaves(
        row=np.empty_like(leaves.row),
        gates_input=np.empty_like(leaves.gates_input),
        places=np.empty_like(leaves.places),
        memory=grad_last.contiguous().numpy().copy(),
        qkv=np.empty_like(record.projected),
        mlp=np.empty_like(record.hidden[1:]),
        gates=np.empty_like(record.gates),
        **sums,
    )
