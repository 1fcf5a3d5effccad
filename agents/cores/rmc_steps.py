"""The relational memory core's step and its gradient; the equations are in `rmc.RMC`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .recurrence import Recurrence, Tape
from .rmc_blocks import Block, Gate, RMCShape
from .taped import TapedLinear


class RMCSteps(Recurrence):
    """RMC over a memory [B, N, F].

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
        self.blocks = [Block(shape, remaining, self.mlp) for _ in range(shape.blocks)]
        for depth in range(shape.mlp_layers):
            self.mlp.append(TapedLinear(next(remaining), next(remaining), rectify=depth > 0))
        self.gate = Gate(next(remaining), next(remaining)) if shape.gates else None
        self.grads_from_input: list[Tensor] = []
        self.grads_gates: list[Tensor] = []

    def forward(self, t: int, state: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """Memory [B, N, F] before step t -> after it."""
        (memory,) = state
        row = self.from_input[t].unsqueeze(1)
        if self.shape.blocks == 1:
            rows, other = memory, row
        else:
            rows, other = torch.cat([memory, row], 1), row[:, :0]
        for block in self.blocks:
            queries = self.shape.slots if block is self.blocks[-1] else self.shape.slots + 1
            rows = block.forward(rows, queries, other, tape)
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
        if self.shape.blocks == 1:
            grad, grad_row = self.blocks[0].backward(grad, slots, tape)
        else:
            for block in reversed(self.blocks):
                grad, _ = block.backward(grad, slots + 1, tape)
            grad, grad_row = grad[:, :slots], grad[:, slots:]
        self.grads_from_input.append(grad_row.squeeze(1))
        return (grad if through_gate is None else grad + through_gate,)

    def gradients(self) -> Sequence[Tensor]:
        """In the order of the constructor."""
        grads = [torch.stack(self.grads_from_input[::-1])]
        if self.gate is not None:
            grads.append(torch.stack(self.grads_gates[::-1]))
        parts = [*self.blocks, *self.mlp, *([] if self.gate is None else [self.gate.linear])]
        return [*grads, *(grad for part in parts for grad in part.grads)]
