"""Relational memory core (Santoro et al. 2018, "Relational recurrent neural networks"), as released by its authors."""

from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..kernels import Affine, Linear
from .core import Axis, Projected, Step, Unrolled
from .fast import bf16
from .fast.elementwise import EPS
from .fast.rmc import unroll as fast
from .fast.routes import arrays, stands_for

Gate = Literal["unit", "memory"]


class RMCState(NamedTuple):
    memory: Tensor  # [B, num_slots, num_heads * head_size]


def truncated_linear(in_features: int, out_features: int) -> Linear:
    """Create a linear layer with zero bias and weights N(0, 1/in_features) truncated at two standard deviations."""
    layer = Linear(in_features, out_features)
    std = in_features**-0.5
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(layer.bias)
    return layer


class RelationalBlock(nn.Module):
    def __init__(self, num_heads: int, key_size: int, head_size: int) -> None:
        super().__init__()
        self.num_heads, self.sizes = num_heads, [key_size, key_size, head_size]
        width, qkv_width = num_heads * head_size, num_heads * (2 * key_size + head_size)
        self.qkv = truncated_linear(width, qkv_width)
        self.qkv_norm = nn.LayerNorm(qkv_width)
        self.attention_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)

    def forward(self, slots: Tensor, queries: int, mlp: nn.ModuleList) -> Tensor:
        """slots [B, N+1, F] -> the first `queries` of them [B, queries, F], after attention over all."""
        projected = self.qkv_norm(self.qkv(slots)).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
        q, k, v = projected.split(self.sizes, 3)  # [B, H, N+1, K], [B, H, N+1, K], [B, H, N+1, V]
        scores = q[:, :, :queries] @ k.transpose(2, 3) * self.sizes[0] ** -0.5
        attended = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        z = y = self.attention_norm(slots[:, :queries] + attended)
        for depth, layer in enumerate(mlp):
            y = layer(y.relu() if depth > 0 else y)
        return self.mlp_norm(z + y)


class RMC(Projected):
    """Relational memory core: N slots that attend to each other and the new input, gated like the cells of an LSTM.
    H heads, slot width F = H * head_size, key size K (default head_size), V = head_size.

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

    `gate="unit"` has one gate per value, "memory" one per slot; with None, M_t = M~. All blocks share one MLP (ReLU
    between its layers, none after the last). Differences from the paper's text, as in the released code: gates
    read x' and tanh(M) instead of x and h, there is no output gate (equation 8), and the memory starts as the
    identity matrix (cut or padded with zeros to [N, F]), constant and not trained.
    """

    supervised_lr = 3e-4
    parts_of_state = (Axis("slot", "memory", 1), Axis("head", "memory", 2, "num_heads"))

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
        super().__init__(input_size, num_slots * num_heads * head_size)
        if gate not in ("unit", "memory", None):
            raise ValueError(f"unknown gate {gate!r} of core 'rmc'; allowed: 'unit', 'memory' or None")
        self.num_slots, self.num_heads, self.width = num_slots, num_heads, num_heads * head_size
        self.gate_biases = (input_bias, forget_bias)
        self.gates = 0 if gate is None else self.width if gate == "unit" else 1
        self.input_projection = truncated_linear(input_size, self.width)
        sizes = (num_heads, head_size if key_size is None else key_size, head_size)
        self.blocks = nn.ModuleList(RelationalBlock(*sizes) for _ in range(num_blocks))
        self.mlp = nn.ModuleList(truncated_linear(self.width, self.width) for _ in range(mlp_layers))
        one = range(gate is not None)  # lists of one gate layer or none
        self.input_gates = nn.ModuleList(truncated_linear(self.width, 2 * self.gates) for _ in one)
        self.memory_gates = nn.ModuleList(truncated_linear(self.width, 2 * self.gates) for _ in one)

    def initial_state(self, batch_size: int) -> RMCState:
        weight = self.input_projection.weight
        identity = torch.eye(self.num_slots, self.width, dtype=weight.dtype, device=weight.device)
        return RMCState(identity.repeat(batch_size, 1, 1))

    def forward(self, inputs: Tensor, state: RMCState) -> tuple[Tensor, RMCState]:
        if not self.compiles(inputs):
            return super().forward(inputs, state)
        outputs, state, _ = self.unroll_compiled(inputs.unsqueeze(0), None, state, None)
        return outputs[0], state

    def compiles(self, inputs: Tensor) -> bool:
        if type(self) is not RMC or len(self.blocks) != 1 or not stands_for(self, inputs):
            return False
        return all(part.eps == EPS for part in self.blocks[0].children() if isinstance(part, nn.LayerNorm))

    def _leaves(self, projected: Tensor, gates: Tensor, memory: Tensor) -> fast.Leaves:
        """Collect the compiled route's inputs from x', its part of the gates, and M."""
        block = cast(RelationalBlock, self.blocks[0])
        layers, gate = cast(list[nn.Linear], self.mlp), cast(list[nn.Linear], self.memory_gates)
        return fast.Leaves(
            row=projected,
            gates_input=gates,
            memory=memory,
            qkv=block.qkv.weight,
            mlp=bf16.once(bf16.stacked, *(layer.weight for layer in layers)),
            gates=gate[0].weight if gate else projected.new_empty(0, self.width),
            qkv_bias=block.qkv.bias,
            qkv_gain=block.qkv_norm.weight,
            qkv_offset=block.qkv_norm.bias,
            attention_gain=block.attention_norm.weight,
            attention_offset=block.attention_norm.bias,
            mlp_gain=block.mlp_norm.weight,
            mlp_offset=block.mlp_norm.bias,
            mlp_bias=torch.stack([layer.bias for layer in layers]),
            gates_bias=gate[0].bias if gate else projected.new_empty(0),
        )

    def fast_step(self, batch_size: int) -> Step | None:
        weight = self.input_projection.weight
        if not self.compiles(weight):
            return None
        memory = self.initial_state(batch_size).memory
        projected, gates = (memory.new_empty(1, batch_size, size) for size in (self.width, 2 * self.gates))
        leaves = self._leaves(projected, gates, memory)
        run = fast.prepare(leaves, memory[0], self.num_heads)
        project = Affine(weight, self.input_projection.bias)
        layers = cast(list[nn.Linear], self.input_gates)
        gate = [Affine(layer.weight, layer.bias + self._gate_bias(layer.bias)) for layer in layers]
        (no_gates,) = arrays(leaves.gates_input)

        def step(inputs: Tensor, reset: Tensor, state: RMCState) -> tuple[Tensor, RMCState]:
            row = project(inputs.numpy())
            gates = gate[0](row)[None] if gate else no_gates
            memory = run(row[None], gates, state.memory, reset.numpy())
            return memory.flatten(1), RMCState(memory)

        return step

    def _gate_bias(self, like: Tensor) -> Tensor:
        """Return the constant biases of the input and forget gates, [2 G]."""
        return torch.cat([like.new_full((self.gates,), bias) for bias in self.gate_biases])

    def _read(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return x' [..., F] and its part of the gates [..., 2 G]."""
        projected = self.input_projection(inputs)
        gates = projected[..., :0]
        for layer in self.input_gates:
            gates = layer(projected) + self._gate_bias(projected)
        return projected, gates

    def unroll_compiled(
        self, inputs: Tensor, reset: Tensor | None, state: RMCState, bptt_length: int | None
    ) -> Unrolled:
        leaves, initial = self._leaves(*self._read(inputs), state.memory), self.initial_state(1).memory[0]
        memory, last = fast.run(leaves, initial, self.num_heads, reset, bptt_length)
        return memory.flatten(2), RMCState(last), None

    def _project(self, inputs: Tensor) -> Tensor:
        return torch.cat(self._read(inputs), -1)

    def _step(self, x: Tensor, state: RMCState) -> tuple[Tensor, RMCState]:
        memory, (projected, gates) = state.memory, x.split([self.width, 2 * self.gates], 1)
        slots = torch.cat([memory, projected.unsqueeze(1)], 1)
        for depth, block in enumerate(self.blocks, 1):
            # Only a further block reads the updated input.
            slots = block(slots, self.num_slots + (depth < len(self.blocks)), self.mlp)
        for layer in self.memory_gates:
            i, f = torch.sigmoid(gates.unsqueeze(1) + layer(memory.tanh())).chunk(2, 2)
            slots = i * slots.tanh() + f * memory
        return slots.flatten(1), RMCState(slots)
