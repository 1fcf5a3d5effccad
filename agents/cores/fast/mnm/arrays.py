"""Arrays of MNM's compiled loop.

Shapes: T steps, B environments, S cells of the LSTM, d values of a layer of the memory, H heads. "Local" updates are
MNMp's; their arrays have length 0 for MNMg, and vice versa.
"""

from typing import Any, NamedTuple

import numpy as np

from ..elementwise import Array


class Leaves(NamedTuple):
    """All values that the unroll depends on and that have gradients, as tensors, or as arrays for compiled functions.
    Matrices are [outputs, inputs], transposed in the forward pass."""

    gates: Any  # [T, B, 4 S]: W_x x + b
    h: Any
    c: Any  # [B, S]
    read: Any  # [B, d]
    memory: Any  # [B, 3, d, d], before the first step
    recurrent: Any  # [4 S, S + d]: from [h ; v^r] to the LSTM's gates.
    heads: Any  # [(3 H + 1) d, S]: W_v
    targets: Any  # [3 d, d]: q; [0, d] for MNMg.
    heads_bias: Any
    rate: Any  # [d]: w_beta
    rate_bias: Any  # [1]
    targets_bias: Any
    norm_gain: Any
    norm_bias: Any  # [(3 H + 1) d]: of the layer normalization; [0] if tanh replaces it.


class Inputs(NamedTuple):
    """Inputs of the loop that have no gradient."""

    reset: Array  # bool [T, B]
    kept: Array  # int [T, B]: index in `Record.memories` for the memory that a reset replaces; -1: none.
    initial: Array  # [3, d, d]: the memory after a reset
    scale: Array  # [2]: s of the write, and the factor of the meta error
    cut: int  # Gradients are truncated before every `cut`-th step; 0: none are


class Result(NamedTuple):
    """Values, or their gradients, of every step, and of the state after the last, as tensors or arrays."""

    joined: Any  # [T, B, S + d]: [h ; v^r]
    errors: Any  # [T, B]: meta errors
    c: Any  # [B, S]
    memory: Any  # [B, 3, d, d]


class Record(NamedTuple):
    """Activations saved by the forward pass for the backward pass."""

    joined: Array  # [T, B, S + d]: h and v^r before each step, after resets
    c: Array  # [T, B, S]: likewise
    gates: Array  # [T, B, 4 S]: i, f, g, o
    squashed: Array  # [T, B, S]: tanh of the cells after each step
    heads: Array  # [T, B, (3 H + 1) d]: beta', then k^w, v^w, k^r of each head
    normal: Array  # [T, B, (3 H + 1) d]: the same before gain and bias; [T, B, 0] without normalization.
    spread: Array  # [T, B, 1]: 1 / deviation of W_v h + b_v, with normalization
    beta: Array  # [T, B, 1]
    keys: Array  # [T, B, 2 H, d]: the write keys, then the read keys
    values: Array  # [T, B, H, d]
    targets: Array  # [T, B, H, 3 d]: q(v^w), local
    written: Array  # [T, B, 3, H, d]: z^1 .. z^3 of the write keys in the memory before the write.
    errors: Array  # [T, B, 3, H, d]: D^1 .. D^3.
    back: Array  # [T, B, 2, H, d]: (M^{l+1})^T D^{l+1}, l = 1, 2; not local.
    found: Array  # [T, B, 3, 2 H, d]: z^1 .. z^3 of all keys in the memory after the write.
    memories: Array  # [., 3, d, d]: memories that resets replaced


class Gradients(NamedTuple):
    """Gradients that the backward pass writes."""

    gates: Array
    heads: Array
    targets: Array  # Of the matrix products of these names, [T, B, ...] as in Record
    norm_gain: Array
    norm_bias: Array  # [groups, (3 H + 1) d], in the loop only the group's: sums over its environments; else width 0.
    rate: Array  # [T, B, 1]: of the sigmoid's argument
    joined: Array  # [B, S + d]: of the last h and v^r, overwritten with those of the first
    c: Array
    memory: Array  # [B, 3, d, d]: likewise


def make_record(steps: int, batch: int, w: Leaves, heads: int, replaced: int) -> Record:
    """Allocate a record."""
    size, width, local, normalized = w.h.shape[1], w.read.shape[1], len(w.targets_bias) > 0, len(w.norm_gain) > 0

    def room(*sizes: int) -> Array:
        return np.empty((steps, batch, *sizes), w.h.dtype)

    return Record(
        joined=room(size + width),
        c=room(size),
        gates=room(4 * size),
        squashed=room(size),
        heads=room((3 * heads + 1) * width),
        normal=room((3 * heads + 1) * width if normalized else 0),
        spread=room(1),
        beta=room(1),
        keys=room(2 * heads, width),
        values=room(heads, width),
        targets=room(heads, 3 * width if local else 0),
        written=room(3, heads, width),
        errors=room(3, heads, width),
        back=room(2, 0 if local else heads, width),
        found=room(3, 2 * heads, width),
        memories=np.empty((replaced, *w.memory.shape[1:]), w.h.dtype),
    )
