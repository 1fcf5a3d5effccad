"""Tensors and arrays of the relational memory core's compiled unroll.

Shapes: T steps, B environments, N slots of F values, H heads with q, k, v of D values in total, L layers of the MLP,
2 G values of the gates (G = 0: none).
"""

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..elementwise import Array


class Leaves(NamedTuple):
    """All values that the unroll depends on and that have gradients, as tensors, or as arrays for compiled functions.
    Matrices are [outputs, inputs]."""

    row: Any  # [T, B, F]: the projected input
    gates_input: Any  # [T, B, 2 G]: its contribution to the gates
    memory: Any  # [B, N, F], before the first step
    qkv: Any  # [D, F]
    mlp: Any  # [L, F, F]
    gates: Any  # [2 G, F]: from the memory to the gates
    qkv_bias: Any  # [D], like gain and offset
    qkv_gain: Any
    qkv_offset: Any
    attention_gain: Any  # [F], like the three below
    attention_offset: Any
    mlp_gain: Any
    mlp_offset: Any
    mlp_bias: Any  # [L, F]
    gates_bias: Any  # [2 G]


VECTORS = Leaves._fields[6:]  # Biases, and gains and offsets of norms


class Settings(NamedTuple):
    """Values without gradients."""

    reset: Array  # bool [T, B]
    initial: Array  # [N, F]: the memory after a reset
    turned: bool  # Whether matrices are [inputs, outputs], which makes multiplications of few rows faster
    cut: int  # Gradients are truncated before every `cut`-th step; 0: none are


class Record(NamedTuple):
    """Activations saved by the forward pass for the backward pass."""

    rows: Array  # [T, B, N + 1, F]: the memory before each step, after resets, and the projected input
    projected: Array  # [T, B, N + 1, D], normalized values
    projected_rstd: Array  # [T, B, N + 1]
    attention: Array  # [T, B, H, N, N + 1]: weights
    attended: Array  # [T, B, N, F], normalized values of memory + attention
    attended_rstd: Array  # [T, B, N]
    hidden: Array  # [L + 1, T, B, N, F]: inputs of the MLP's layers, then normalized values of its residual sum
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
        attention=room(heads, slots, slots + 1),
        attended=room(slots, width),
        attended_rstd=room(slots),
        hidden=np.empty((layers + 1, steps, batch, slots, width), leaves.memory.dtype),
        hidden_rstd=room(slots),
        candidate=room(*gated),
        squashed=room(*gated),
        gates=room(slots, gates),
    )


def make_gradients(leaves: Leaves, record: Record, grad_last: Tensor, groups: int) -> Leaves:
    """Allocate the results of the backward pass; `memory` is initially the gradient of the last memory.

    Matrices are replaced by the gradients of their products: `qkv` [T, B, N + 1, D], `mlp` [L, T, B, N, F], `gates`
    [T, B, N, 2 G]. Vectors have one sum per group of environments, [groups, ...].
    """
    like = {"qkv": record.projected, "mlp": record.hidden[1:], "gates": record.gates}
    like |= {name: getattr(leaves, name) for name in ("row", "gates_input")}
    sums = {name: np.zeros((groups, *getattr(leaves, name).shape), record.rows.dtype) for name in VECTORS}
    memory = grad_last.contiguous().numpy().copy()
    return Leaves(memory=memory, **{name: np.empty_like(array) for name, array in like.items()}, **sums)
