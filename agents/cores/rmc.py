"""Relational memory core (Santoro et al. 2018, "Relational recurrent neural networks"), as its authors released it."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..kernels import Linear
from .core import Core, at_least_one, full_precision, unroll_step_by_step
from .fast.rmc import unroll as fast

Gate = Literal["unit", "memory"]


class RMCState(NamedTuple):
    memory: Tensor
    """[B, num_slots, num_heads * head_size]."""


def truncated_linear(in_features: int, out_features: int) -> Linear:
    """A linear layer with zero bias and weights N(0, 1/in_features) cut at two standard deviations."""
    layer = Linear(in_features, out_features)
    std = in_features**-0.5
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(layer.bias)
    return layer


class RelationalBlock(nn.Module):
    """One round of attention over the slots and the input, [B, N+1, F]; the equations are those of `RMC`."""

    def __init__(self, num_heads: int, key_size: int, head_size: int) -> None:
        super().__init__()
        self.num_heads, self.sizes = num_heads, [key_size, key_size, head_size]
        width, qkv_width = num_heads * head_size, num_heads * (2 * key_size + head_size)
        self.qkv = truncated_linear(width, qkv_width)
        self.qkv_norm = nn.LayerNorm(qkv_width)
        self.attention_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)

    def forward(self, slots: Tensor, queries: int, mlp: nn.ModuleList) -> Tensor:
        """slots [B, N+1, F] -> the first `queries` of them [B, queries, F], after attending over all."""
        projected = self.qkv_norm(self.qkv(slots)).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
        q, k, v = projected.split(self.sizes, 3)  # [B, H, N+1, K], [B, H, N+1, K], [B, H, N+1, V]
        scores = q[:, :, :queries] @ k.transpose(2, 3) * self.sizes[0] ** -0.5
        attended = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        z = y = self.attention_norm(slots[:, :queries] + attended)
        for depth, layer in enumerate(mlp):
            y = layer(y.relu() if depth > 0 else y)
        return self.mlp_norm(z + y)


class RMC(Core):
    """N memory slots that attend over each other and the new input, then are gated like the cells of an LSTM.

    N slots, H heads, slot width F = H * head_size, key size K (default head_size), V = head_size.

        x' = W_in x + b_in                                       [B, F]
        Z  = [M_{t-1} ; x']                                      [B, N+1, F]
        for each block:
            P = LayerNorm(Z W_qkv + b_qkv)                       [B, N+1, H (2K + V)], one norm over all heads
            q, k, v = slices of P per head;  A = softmax(q k^T / sqrt(K)) v       (paper equation 2)
            Z = LayerNorm(Z + A);  Z = LayerNorm(Z + MLP(Z))
        M~ = the first N of Z                                    [B, N, F]
        G  = x' W_gx + b_gx + tanh(M_{t-1}) W_gm + b_gm          halves: input gate, forget gate
        M_t = sigmoid(G_i) tanh(M~) + sigmoid(G_f + 1) M_{t-1}   (paper equations 5-7)
        output = flatten(M_t)                                    [B, N F]

    `gate="unit"` has one gate per number, "memory" one per slot, None keeps M_t = M~. The MLP (ReLU between its
    layers, none after the last) is one for all blocks. Differences from the paper's text, as in the released code:
    gates read x' and tanh(M) instead of x and h, there is no output gate (equation 8), and the memory starts as
    the identity matrix (cut or padded with zeros to [N, F]), constant and not trained.
    """

    def __init__(
        self,
        input_size: int,
        num_slots: int = 4,
        num_heads: int = 4,
        head_size: int = 64,
        key_size: int | None = None,
        num_blocks: int = 1,
        mlp_layers: int = 2,
        gate: Gate | None = "memory",
        input_bias: float = 0.0,
        forget_bias: float = 1.0,
    ) -> None:
        super().__init__()
        key_size = head_size if key_size is None else key_size
        at_least_one(num_slots=num_slots, num_heads=num_heads, head_size=head_size)
        at_least_one(key_size=key_size, num_blocks=num_blocks, mlp_layers=mlp_layers)
        if gate not in ("unit", "memory", None):
            raise ValueError(f"unknown gate {gate!r} of core 'rmc'; allowed: 'unit', 'memory' or None")
        self.num_slots, self.num_heads, self.width = num_slots, num_heads, num_heads * head_size
        self.input_size, self.output_size = input_size, num_slots * self.width
        self.gate_biases = (input_bias, forget_bias)
        self.gates = 0 if gate is None else self.width if gate == "unit" else 1
        self.input_projection = truncated_linear(input_size, self.width)
        self.blocks = nn.ModuleList(RelationalBlock(num_heads, key_size, head_size) for _ in range(num_blocks))
        self.mlp = nn.ModuleList(truncated_linear(self.width, self.width) for _ in range(mlp_layers))
        one = range(gate is not None)  # lists of one gate layer or none
        self.input_gates = nn.ModuleList(truncated_linear(self.width, 2 * self.gates) for _ in one)
        self.memory_gates = nn.ModuleList(truncated_linear(self.width, 2 * self.gates) for _ in one)

    def initial_state(self, batch_size: int) -> RMCState:
        """The identity matrix for every environment: [batch_size, N, F]."""
        weight = self.input_projection.weight
        identity = torch.eye(self.num_slots, self.width, dtype=weight.dtype, device=weight.device)
        return RMCState(identity.repeat(batch_size, 1, 1))

    @full_precision
    def forward(self, inputs: Tensor, state: RMCState) -> tuple[Tensor, RMCState]:
        """inputs [B, input_size], state -> output [B, N F], next state."""
        outputs, state, _ = self._over_time(inputs.unsqueeze(0), None, state, None)
        return outputs[0], state

    @full_precision
    def unroll(
        self, inputs: Tensor, reset: Tensor, state: RMCState, bptt_length: int | None = None
    ) -> tuple[Tensor, RMCState, Tensor | None]:
        """As `Core.unroll`; all that depends on the inputs alone is computed for all steps at once."""
        return self._over_time(inputs, reset, state, bptt_length)

    def _over_time(
        self, inputs: Tensor, reset: Tensor | None, state: RMCState, bptt_length: int | None
    ) -> tuple[Tensor, RMCState, Tensor | None]:
        projected = self.input_projection(inputs)
        gates = projected[..., :0]
        for layer in self.input_gates:
            gates = layer(projected) + torch.cat([projected.new_full((self.gates,), bias) for bias in self.gate_biases])
        if type(self) is RMC and fast.suits(self, inputs):
            memory, last = fast.run(self, projected, gates, state.memory, reset, bptt_length)
            return memory.flatten(2), RMCState(last), None
        both = torch.cat([projected, gates], 2)
        if reset is None:
            output, state = self._step(both[0], state)
            return output.unsqueeze(0), state, None
        return unroll_step_by_step(self, both, reset, state, bptt_length, self._step)

    def _step(self, both: Tensor, state: RMCState) -> tuple[Tensor, RMCState]:
        """x' and its share of the gates [B, F + 2 G], state -> output [B, N F], next state."""
        memory, (projected, gates) = state.memory, both.split([self.width, 2 * self.gates], 1)
        slots = torch.cat([memory, projected.unsqueeze(1)], 1)
        for number, block in enumerate(self.blocks, 1):
            # Only a further block reads what became of the input.
            slots = block(slots, self.num_slots + (number < len(self.blocks)), self.mlp)
        for layer in self.memory_gates:
            i, f = torch.sigmoid(gates.unsqueeze(1) + layer(memory.tanh())).chunk(2, 2)
            slots = i * slots.tanh() + f * memory
        return slots.flatten(1), RMCState(slots)
