"""The parts of the relational memory core's step, in torch's operations; `rmc_native.py` has them compiled."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import tanh
from .recurrence import Tape
from .taped import TapedAttention, TapedLinear, TapedNorm


class RMCShape(NamedTuple):
    """What the tensors alone do not tell. `gates` is the number of gates per slot: 0, 1 or the slot's width."""

    slots: int
    heads: int
    key_size: int
    blocks: int
    mlp_layers: int
    gates: int


class Block:
    """One round of attention over rows [B, r, F]."""

    def __init__(self, shape: RMCShape, tensors: Iterator[Tensor], mlp: list[TapedLinear]) -> None:
        self.qkv = TapedLinear(next(tensors), next(tensors))
        self.qkv_norm = TapedNorm(next(tensors), next(tensors))
        self.attention = TapedAttention(shape.heads, shape.key_size)
        self.attention_norm = TapedNorm(next(tensors), next(tensors))
        self.mlp_norm = TapedNorm(next(tensors), next(tensors))
        self.mlp = mlp

    def forward(self, rows: Tensor, queries: int, other: Tensor, tape: Tape) -> Tensor:
        """The first `queries` rows, after attending over all and over E rows with q, k, v `other` [B, E, D]."""
        projected = self.qkv.forward(rows.flatten(0, 1), tape)
        z = self._attend(projected.view(*rows.shape[:2], -1), rows, queries, other, tape)
        y = z
        for layer in self.mlp:
            y = layer.forward(y, tape)
        return self._add_norm(y, z, tape).view(len(rows), queries, -1)

    def backward(self, grad: Tensor, rows: int, tape: Tape) -> tuple[Tensor, Tensor]:
        """Gradient of the output [B, queries, F] -> of the `rows` rows [B, rows, F], and of the others' q, k, v."""
        grad_sum = self._add_norm_backward(grad.flatten(0, 1), tape)
        grad_z = grad_sum
        for layer in reversed(self.mlp):
            grad_z = layer.backward(grad_z, tape)
        residual, grad_projected, grad_other = self._attend_backward(
            grad_z.view(grad.shape), grad_sum.view(grad.shape), rows, tape
        )
        grad_rows = self.qkv.backward(grad_projected.flatten(0, 1), tape).view(len(grad), rows, -1)
        grad_rows[:, : grad.shape[1]] += residual
        return grad_rows, grad_other

    def _attend(self, projected: Tensor, rows: Tensor, queries: int, other: Tensor, tape: Tape) -> Tensor:
        """LayerNorm(Z + A) [B queries, F]."""
        qkv = self.qkv_norm.forward(projected.flatten(0, 1), tape).view(projected.shape)
        qkv = torch.cat([qkv, other], 1) if other.shape[1] else qkv
        attended = self.attention.forward(qkv, queries, tape)
        return self.attention_norm.forward((rows[:, :queries] + attended).flatten(0, 1), tape)

    def _attend_backward(self, grad: Tensor, more: Tensor, rows: int, tape: Tape) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient `grad + more` of what `_attend` returned -> of Z + A, projected and other."""
        residual = self.attention_norm.backward((grad + more).flatten(0, 1), tape).view(grad.shape)
        grad_qkv = self.attention.backward(residual, tape)
        own = self.qkv_norm.backward(grad_qkv[:, :rows].flatten(0, 1), tape)
        return residual, own.view(len(grad), rows, -1), grad_qkv[:, rows:]

    def _add_norm(self, y: Tensor, z: Tensor, tape: Tape) -> Tensor:
        return self.mlp_norm.forward(y.add_(z), tape)

    def _add_norm_backward(self, grad: Tensor, tape: Tape) -> Tensor:
        return self.mlp_norm.backward(grad, tape)

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
        squashed = self._tanh(memory)
        gates = self.linear.forward(squashed.flatten(0, 1), tape).view(*memory.shape[:2], -1)
        gates = gates.add_(from_input.unsqueeze(1)).sigmoid_()
        candidate, mixed = self._mix(memory, candidate, gates)
        tape.save(memory, squashed, candidate, gates)
        return mixed

    def backward(self, grad: Tensor, tape: Tape) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient of M -> of M_{t-1}, as far as it went through the gate, of M~ and of the input's share."""
        memory, squashed, candidate, gates = tape.take(4)
        old, grad_candidate, grad_gates = self._mix_backward(grad, memory, candidate, gates)
        through_tanh = self.linear.backward(grad_gates.flatten(0, 1), tape).view(memory.shape)
        return self._add_through_tanh(old, through_tanh, squashed), grad_candidate, grad_gates.sum(1)

    def _tanh(self, memory: Tensor) -> Tensor:
        return tanh(memory)

    def _mix(self, memory: Tensor, candidate: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
        """tanh(M~) and the new memory."""
        i, f = gates.chunk(2, -1)
        candidate = tanh(candidate)
        return candidate, torch.mul(f, memory).addcmul_(i, candidate)

    def _mix_backward(
        self, grad: Tensor, memory: Tensor, candidate: Tensor, gates: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the memory, of M~ and of the gates before their sigmoid."""
        i, f = gates.chunk(2, -1)
        grad_i, grad_f = grad * candidate, grad * memory
        if i.shape[-1] == 1:
            grad_i, grad_f = grad_i.sum(-1, keepdim=True), grad_f.sum(-1, keepdim=True)
        grad_gates = torch.ops.aten.sigmoid_backward(torch.cat([grad_i, grad_f], -1), gates)
        return grad * f, torch.ops.aten.tanh_backward(grad * i, candidate), grad_gates

    def _add_through_tanh(self, total: Tensor, grad: Tensor, squashed: Tensor) -> Tensor:
        return total.add_(torch.ops.aten.tanh_backward(grad, squashed))
