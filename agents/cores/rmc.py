"""Relational memory core (Santoro et al. 2018, "Relational recurrent neural networks").

The form is that of the authors' released code after its correction of the attention scale; where it differs from the
paper's text is said in the class's description.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .core import Core

Gate = Literal["unit", "memory"]


class RMCState(NamedTuple):
    """memory [B, num_slots, num_heads * head_size]."""

    memory: Tensor


def truncated_linear(in_features: int, out_features: int) -> nn.Linear:
    """A linear layer with zero bias and weights N(0, 1/in_features) cut at two standard deviations."""
    layer = nn.Linear(in_features, out_features)
    std = in_features**-0.5
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(layer.bias)
    return layer


class RelationalBlock(nn.Module):
    """The parameters of one round of attention: each block has its own."""

    def __init__(self, width: int, qkv_width: int) -> None:
        super().__init__()
        self.qkv = truncated_linear(width, qkv_width)
        self.qkv_norm = nn.LayerNorm(qkv_width)
        self.attention_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)


class RMC(Core):
    """N memory slots that attend over each other and the new input, then are gated like the cells of an LSTM.

    N slots, H heads, slot width F = H * head_size, key size K (default head_size), V = head_size.

        x' = W_in x + b_in                                       [B, F]
        Z  = rows [M_{t-1} ; x']                                 [B, N+1, F]
        for each block:
            P = LayerNorm(Z W_qkv + b_qkv)                       [B, N+1, H (2K + V)], one norm over all heads
            q, k, v = slices of P per head;  A = softmax(q k^T / sqrt(K)) v       (paper equation 2)
            Z = LayerNorm(Z + A);  Z = LayerNorm(Z + MLP(Z))
        M~ = the rows of the slots                               [B, N, F]
        G  = x' W_gx + b_gx + tanh(M_{t-1}) W_gm + b_gm          halves: input gate, forget gate
        M_t = sigmoid(G_i) tanh(M~) + sigmoid(G_f + 1) M_{t-1}   (paper equations 5-7)
        output = flatten(M_t)                                    [B, N F]

    `gate="unit"` has one gate per number, "memory" one per slot, None keeps M_t = M~. The MLP (ReLU between its
    layers, none after the last) is one for all blocks. Differences from the paper's text, as in the released code:
    gates read x' and tanh(M) instead of x and h, there is no output gate (equation 8), and the memory starts as
    the identity matrix (cut or padded with zeros to [N, F]), constant and not trained.

    Weights are drawn from a normal of standard deviation 1/sqrt(fan in) cut at two of them; biases start at zero.
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
        if gate not in ("unit", "memory", None):
            raise ValueError(f"unknown gate {gate!r} of core 'rmc'; use 'unit', 'memory' or None")
        width = num_heads * head_size
        self.num_slots, self.num_heads, self.head_size = num_slots, num_heads, head_size
        self.key_size = head_size if key_size is None else key_size
        self.width = width
        self.output_size = num_slots * width
        self.gate = gate
        self.input_bias, self.forget_bias = input_bias, forget_bias
        self.input_projection = truncated_linear(input_size, width)
        qkv_width = num_heads * (2 * self.key_size + head_size)
        self.blocks = nn.ModuleList(RelationalBlock(width, qkv_width) for _ in range(num_blocks))
        self.mlp = nn.ModuleList(truncated_linear(width, width) for _ in range(mlp_layers))
        if gate is not None:
            gates = 2 * (width if gate == "unit" else 1)
            self.input_gates = truncated_linear(width, gates)
            self.memory_gates = truncated_linear(width, gates)

    def initial_state(self, batch_size: int) -> RMCState:
        """The identity matrix in every row of the batch: float32 [batch_size, N, F]."""
        identity = torch.eye(self.num_slots, self.width, device=self.input_projection.weight.device)
        return RMCState(identity.repeat(batch_size, 1, 1))

    def forward(self, inputs: Tensor, state: RMCState) -> tuple[Tensor, RMCState]:
        """inputs [B, input_size], state -> output [B, N F], next state."""
        projected = self.input_projection(inputs)
        rows = torch.cat([state.memory, projected.unsqueeze(1)], dim=1)
        for block in self.blocks:
            assert isinstance(block, RelationalBlock)
            rows = block.attention_norm(rows + self._attend(block, rows))
            rows = block.mlp_norm(rows + self._mlp(rows))
        memory = self._gated(projected, rows[:, : self.num_slots], state.memory)
        return memory.flatten(1), RMCState(memory)

    def _attend(self, block: RelationalBlock, rows: Tensor) -> Tensor:
        qkv = block.qkv_norm(block.qkv(rows)).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        q, k, v = qkv.split([self.key_size, self.key_size, self.head_size], dim=-1)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def _mlp(self, rows: Tensor) -> Tensor:
        for depth, layer in enumerate(self.mlp):
            rows = layer(rows.relu() if depth else rows)
        return rows

    def _gated(self, projected: Tensor, candidate: Tensor, memory: Tensor) -> Tensor:
        if self.gate is None:
            return candidate
        gates = self.input_gates(projected).unsqueeze(1) + self.memory_gates(memory.tanh())
        input_gate, forget_gate = gates.chunk(2, dim=-1)
        kept = torch.sigmoid(forget_gate + self.forget_bias) * memory
        return torch.sigmoid(input_gate + self.input_bias) * candidate.tanh() + kept
