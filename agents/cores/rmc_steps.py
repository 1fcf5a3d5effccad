"""The relational memory core's step and its gradient; the equations are in `rmc.RMC`."""

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


class TapedBlock:
    """One round of attention over rows [r, B, F]."""

    def __init__(self, shape: RMCShape, tensors: Iterator[Tensor], mlp: list[TapedLinear]) -> None:
        self.heads = shape.heads
        self.qkv = TapedLinear(next(tensors), next(tensors))
        self.qkv_norm = TapedNorm(next(tensors), next(tensors))
        self.attention = TapedAttention(shape.key_size)
        self.attention_norm = TapedNorm(next(tensors), next(tensors))
        self.mlp_norm = TapedNorm(next(tensors), next(tensors))
        self.mlp = mlp

    def forward(self, rows: Tensor, queries: int, other: Tensor | None, tape: Tape) -> Tensor:
        """The first `queries` rows, after attending over all and over `other`, a row's normed q, k, v [1, B, .]."""
        qkv = self.qkv_norm.forward(self.qkv.forward(rows.flatten(0, 1), tape), tape).view(*rows.shape[:2], -1)
        if other is not None:
            qkv = torch.cat([qkv, other])
        attended = self.attention.forward(self._by_head(qkv), queries, tape)
        rows = rows[:queries]
        z = self.attention_norm.forward((self._by_head(rows) + attended).view(-1, rows.shape[2]), tape)
        y = z
        for layer in self.mlp:
            y = layer.forward(y, tape)
        return self.mlp_norm.forward(y.add_(z), tape).view(rows.shape)

    def backward(self, grad: Tensor, rows: int, tape: Tape) -> tuple[Tensor, Tensor]:
        """Gradient of the output [queries, B, F] -> of the `rows` rows [rows, B, F], and of the other's q, k, v."""
        grad_sum = self.mlp_norm.backward(grad.flatten(0, 1), tape)
        grad_z = grad_sum
        for layer in reversed(self.mlp):
            grad_z = layer.backward(grad_z, tape)
        residual = self.attention_norm.backward(grad_z + grad_sum, tape).view(grad.shape)
        grad_qkv = self.attention.backward(self._by_head(residual), tape)
        own = self.qkv_norm.backward(grad_qkv[:rows].view(rows * grad.shape[1], -1), tape)
        grad_rows = self.qkv.backward(own, tape).view(rows, *grad.shape[1:])
        grad_rows[: len(grad)] += residual
        return grad_rows, grad_qkv[rows:].view(-1, grad.shape[1], own.shape[1])

    def _by_head(self, rows: Tensor) -> Tensor:
        """[r, B, heads * width] -> [r, B * heads, width]."""
        return rows.view(len(rows), rows.shape[1] * self.heads, -1)

    @property
    def grads(self) -> list[Tensor]:
        """Of the block's own parameters, in the order they were given in."""
        parts = (self.qkv, self.qkv_norm, self.attention_norm, self.mlp_norm)
        return [grad for part in parts for grad in part.grads]


class RMCSteps(Recurrence):
    """RMC over a memory [B, N, F], which is [N, B, F] inside: then every row of the attention lies in one piece.

    With one block only the slots' rows need be computed in the loop: the input's keys and values come ready for all
    steps as `from_input` [T, B, H (2K + V)], and what becomes of the input's own row is never read. With more blocks
    `from_input` is the projected input [T, B, F], a row among the others in all blocks but the last.
    """

    def __init__(self, shape: RMCShape, *tensors: Tensor) -> None:
        """from_input, input's share of the gates [T, B, 2 gates], blocks, MLP, memory's share of the gates."""
        self.shape = shape
        remaining = iter(tensors)
        self.from_input = next(remaining)
        self.gates_from_input = next(remaining) if shape.gates else None
        self.mlp: list[TapedLinear] = []
        self.blocks = [TapedBlock(shape, remaining, self.mlp) for _ in range(shape.blocks)]
        for depth in range(shape.mlp_layers):
            self.mlp.append(TapedLinear(next(remaining), next(remaining), rectify=depth > 0))
        self.memory_gates = TapedLinear(next(remaining), next(remaining)) if shape.gates else None
        self.grads_from_input: list[Tensor] = []
        self.grads_gates: list[Tensor] = []

    def forward(self, t: int, state: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """Memory [B, N, F] before step t -> after it."""
        memory = state[0].transpose(0, 1).contiguous()
        row = self.from_input[t : t + 1]
        hoisted = self.shape.blocks == 1
        rows = memory if hoisted else torch.cat([memory, row])
        for block in self.blocks:
            queries = self.shape.slots if block is self.blocks[-1] else self.shape.slots + 1
            rows = block.forward(rows, queries, row if hoisted else None, tape)
        return ((rows if self.gates_from_input is None else self._gate(t, memory, rows, tape)).transpose(0, 1),)

    def backward(self, t: int, grads: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """Gradient of the memory after step t -> before it."""
        grad = grads[0].transpose(0, 1).contiguous()
        slots = self.shape.slots
        through_gate, grad = (None, grad) if self.memory_gates is None else self._gate_backward(grad, tape)
        if self.shape.blocks == 1:
            grad, grad_row = self.blocks[0].backward(grad, slots, tape)
        else:
            for block in reversed(self.blocks):
                grad, _ = block.backward(grad, slots + 1, tape)
            grad, grad_row = grad[:slots], grad[slots:]
        self.grads_from_input.append(grad_row[0])
        return ((grad if through_gate is None else grad + through_gate).transpose(0, 1),)

    def gradients(self) -> Sequence[Tensor]:
        """In the order of the constructor."""
        grads = [torch.stack(self.grads_from_input[::-1])]
        if self.memory_gates is not None:
            grads.append(torch.stack(self.grads_gates[::-1]))
        parts = [*self.blocks, *self.mlp, *([] if self.memory_gates is None else [self.memory_gates])]
        return [*grads, *(grad for part in parts for grad in part.grads)]

    def _gate(self, t: int, memory: Tensor, candidate: Tensor, tape: Tape) -> Tensor:
        assert self.gates_from_input is not None
        assert self.memory_gates is not None
        squashed = tanh(memory)
        gates = self.memory_gates.forward(squashed.flatten(0, 1), tape).view(*memory.shape[:2], -1)
        gates = gates.add_(self.gates_from_input[t]).sigmoid_()
        i, f = gates.chunk(2, -1)
        candidate = tanh(candidate)
        tape.save(memory, squashed, candidate, gates)
        return torch.mul(f, memory).addcmul_(i, candidate)

    def _gate_backward(self, grad: Tensor, tape: Tape) -> tuple[Tensor, Tensor]:
        """Gradient of the new memory -> of the old one, as far as it went through the gate, and of M~."""
        assert self.memory_gates is not None
        memory, squashed, candidate, gates = tape.take(4)
        i, f = gates.chunk(2, -1)
        grad_i, grad_f = grad * candidate, grad * memory
        if self.shape.gates == 1:
            grad_i, grad_f = grad_i.sum(-1, keepdim=True), grad_f.sum(-1, keepdim=True)
        grad_gates = torch.ops.aten.sigmoid_backward(torch.cat([grad_i, grad_f], -1), gates)
        self.grads_gates.append(grad_gates.sum(0))
        through_tanh = self.memory_gates.backward(grad_gates.flatten(0, 1), tape).view(memory.shape)
        old = (grad * f).add_(torch.ops.aten.tanh_backward(through_tanh, squashed))
        return old, torch.ops.aten.tanh_backward(grad * i, candidate)
