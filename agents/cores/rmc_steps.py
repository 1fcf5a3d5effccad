"""The relational memory core's step and its gradient in torch's operations; the equations are in `rmc.RMC`.

For GPUs, torch.compile and cores of several blocks; on a CPU one block of attention is compiled (`rmc_native.py`).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import tanh
from .recurrence import Recurrence, Tape
from .taped import TapedAttention, TapedLinear, TapedNorm


class RMCShape(NamedTuple):
    """What the tensors alone do not tell. `gates` is the number of gates per slot: 0, 1 or the slot's width."""

    slots: int
    heads: int
    key_size: int
    blocks: int
    mlp_layers: int
    gates: int


class RMCSteps(Recurrence):
    """RMC over a memory [B, N, F], which attends with the projected input as one row more.

    What becomes of the input's own row is read by the next block only, so the last one does not compute it.
    """

    def __init__(self, shape: RMCShape, *tensors: Tensor) -> None:
        """Projected input [T, B, F], its share of the gates [T, B, 2 G], blocks, MLP, memory's share of the gates."""
        self.shape = shape
        remaining = iter(tensors)
        self.from_input = next(remaining)
        self.gates_from_input = next(remaining) if shape.gates else None
        self.mlp: list[TapedLinear] = []
        self.blocks = [Block(shape, remaining, self.mlp) for _ in range(shape.blocks)]
        for depth in range(shape.mlp_layers):
            self.mlp.append(TapedLinear(next(remaining), next(remaining), rectify=depth > 0))
        self.gate = Gate(next(remaining), next(remaining)) if shape.gates else None
        self.grads_from_input: list[Tensor] = []
        self.grads_gates: list[Tensor] = []

    def forward(self, t: int, state: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """Memory [B, N, F] before step t -> after it."""
        (memory,) = state
        rows = torch.cat([memory, self.from_input[t].unsqueeze(1)], 1)
        for block in self.blocks:
            rows = block.forward(rows, self.shape.slots + (block is not self.blocks[-1]), tape)
        if self.gate is None or self.gates_from_input is None:
            return (rows,)
        return (self.gate.forward(memory, rows, self.gates_from_input[t], tape),)

    def backward(self, t: int, grads: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """Gradient of the memory after step t -> before it."""
        (grad,) = grads
        slots, through_gate = self.shape.slots, None
        if self.gate is not None:
            through_gate, grad, grad_gates = self.gate.backward(grad, tape)
            self.grads_gates.append(grad_gates)
        for block in reversed(self.blocks):
            grad = block.backward(grad, slots + 1, tape)
        grad, grad_row = grad[:, :slots], grad[:, slots]
        self.grads_from_input.append(grad_row)
        return (grad if through_gate is None else grad + through_gate,)

    def gradients(self) -> Sequence[Tensor]:
        """In the order of the constructor."""
        grads = [torch.stack(self.grads_from_input[::-1])]
        if self.gate is not None:
            grads.append(torch.stack(self.grads_gates[::-1]))
        parts = [*self.blocks, *self.mlp, *([] if self.gate is None else [self.gate.linear])]
        return [*grads, *(grad for part in parts for grad in part.grads)]


class Block:
    """One round of attention over rows [B, r, F]."""

    def __init__(self, shape: RMCShape, tensors: Iterator[Tensor], mlp: list[TapedLinear]) -> None:
        self.qkv = TapedLinear(next(tensors), next(tensors))
        self.qkv_norm = TapedNorm(next(tensors), next(tensors))
        self.attention = TapedAttention(shape.heads, shape.key_size)
        self.attention_norm = TapedNorm(next(tensors), next(tensors))
        self.mlp_norm = TapedNorm(next(tensors), next(tensors))
        self.mlp = mlp

    def forward(self, rows: Tensor, queries: int, tape: Tape) -> Tensor:
        """The first `queries` rows, after attending over all."""
        qkv = self.qkv_norm.forward(self.qkv.forward(rows.flatten(0, 1), tape), tape)
        attended = self.attention.forward(qkv.view(*rows.shape[:2], -1), queries, tape)
        z = self.attention_norm.forward((rows[:, :queries] + attended).flatten(0, 1), tape)
        y = z
        for layer in self.mlp:
            y = layer.forward(y, tape)
        return self.mlp_norm.forward(y.add_(z), tape).view(len(rows), queries, -1)

    def backward(self, grad: Tensor, rows: int, tape: Tape) -> Tensor:
        """Gradient of the output [B, queries, F] -> of the `rows` rows [B, rows, F]."""
        queries = grad.shape[1]
        grad_sum = self.mlp_norm.backward(grad.flatten(0, 1), tape)
        grad_z = grad_sum
        for layer in reversed(self.mlp):
            grad_z = layer.backward(grad_z, tape)
        residual = self.attention_norm.backward(grad_z + grad_sum, tape).view(grad.shape)
        grad_qkv = self.qkv_norm.backward(self.attention.backward(residual, tape).flatten(0, 1), tape)
        grad_rows = self.qkv.backward(grad_qkv, tape).view(len(grad), rows, -1)
        grad_rows[:, :queries] += residual
        return grad_rows

    @property
    def grads(self) -> list[Tensor]:
        """Of the block's own parameters, in the order they were given in."""
        parts = (self.qkv, self.qkv_norm, self.attention_norm, self.mlp_norm)
        return [grad for part in parts for grad in part.grads]


class Gate:
    """M = i tanh(M~) + f M_{t-1} on memories [B, N, F], gates from tanh(M_{t-1}) and the input."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.linear = TapedLinear(weight, bias)

    def forward(self, memory: Tensor, candidate: Tensor, from_input: Tensor, tape: Tape) -> Tensor:
        """memory M_{t-1}, candidate M~ and the input's share of the gates [B, 2 G] -> M."""
        squashed, candidate = tanh(memory), tanh(candidate)
        gates = self.linear.forward(squashed.flatten(0, 1), tape).view(*memory.shape[:2], -1)
        gates = gates.add_(from_input.unsqueeze(1)).sigmoid_()
        i, f = gates.chunk(2, -1)
        tape.save(memory, squashed, candidate, gates)
        return torch.mul(f, memory).addcmul_(i, candidate)

    def backward(self, grad: Tensor, tape: Tape) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient of M -> of M_{t-1}, as far as it went through the gate, of M~ and of the input's share."""
        memory, squashed, candidate, gates = tape.take(4)
        i, f = gates.chunk(2, -1)
        grad_i, grad_f = grad * candidate, grad * memory
        if i.shape[-1] == 1:
            grad_i, grad_f = grad_i.sum(-1, keepdim=True), grad_f.sum(-1, keepdim=True)
        grad_gates = torch.ops.aten.sigmoid_backward(torch.cat([grad_i, grad_f], -1), gates)
        through_tanh = self.linear.backward(grad_gates.flatten(0, 1), tape).view(memory.shape)
        old = (grad * f).add_(torch.ops.aten.tanh_backward(through_tanh, squashed))
        return old, torch.ops.aten.tanh_backward(grad * i, candidate), grad_gates.sum(1)
