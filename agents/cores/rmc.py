"""Relational memory core (Santoro et al. 2018, "Relational recurrent neural networks"), as released by its authors."""

from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from .. import bf16
from ..kernels import Linear
from .core import Axis, Core, Step, unroll_step_by_step
from .fast.acting import Affine
from .fast.elementwise import EPS
from .fast.rmc import unroll as fast
from .fast.rmc.arrays import Leaves
from .fast.routes import arrays, stands_for
from .parts.images import image_size

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
    """One round of attention over the slots and the input, [B, N+1, F]; the equations are those of `RMC`."""

    def __init__(self, num_heads: int, key_size: int, head_size: int) -> None:
        super().__init__()
        self.num_heads, self.sizes = num_heads, [key_size, key_size, head_size]
        width, qkv_width = num_heads * head_size, num_heads * (2 * key_size + head_size)
        self.qkv = truncated_linear(width, qkv_width)
        self.qkv_norm = nn.LayerNorm(qkv_width)
        self.attention_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)

    def forward(self, slots: Tensor, places: Tensor, queries: int, mlp: nn.ModuleList) -> Tensor:
        """slots [B, N+1, F] -> the first `queries` of them [B, queries, F], after attention over all. places [B, P, H
        (K + V)] are keys and values of P more inputs of the attention."""
        projected = self.qkv_norm(self.qkv(slots)).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
        q, k, v = projected.split(self.sizes, 3)  # [B, H, N+1, K], [B, H, N+1, K], [B, H, N+1, V]
        if places.shape[1]:
            more = places.unflatten(2, (self.num_heads, -1)).transpose(1, 2).split(self.sizes[1:], 3)
            k, v = torch.cat([k, more[0]], 2), torch.cat([v, more[1]], 2)
        scores = q[:, :, :queries] @ k.transpose(2, 3) * self.sizes[0] ** -0.5
        attended = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        z = y = self.attention_norm(slots[:, :queries] + attended)
        for depth, layer in enumerate(mlp):
            y = layer(y.relu() if depth > 0 else y)
        return self.mlp_norm(z + y)


class RMC(Core):
    """Relational memory core: N slots that attend to each other and the new input, gated like the cells of an LSTM.

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

    `gate="unit"` has one gate per value, "memory" one per slot; with None, M_t = M~. All blocks share one MLP (ReLU
    between its layers, none after the last). Differences from the paper's text, as in the released code: gates
    read x' and tanh(M) instead of x and h, there is no output gate (equation 8), and the memory starts as the
    identity matrix (cut or padded with zeros to [N, F]), constant and not trained.

    With `places`, M also attends to each of the P positions of the image [channels, height, width] with which the
    input begins, as the position planes of the paper's BoxWorld agent (A.3) suggest:

        k_p, v_p = slices of c_p W_p + b_p per head              [B, P, H (K + V)], the same in every block

    c_p are the channels at position p; an agent whose torso has convolutions supplies the three sizes. Otherwise,
    the sizes are inferred as in `ConvLSTM`.
    """

    supervised_lr = 3e-4

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
        places: bool = False,
        channels: int | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> None:
        super().__init__()
        key_size = head_size if key_size is None else key_size
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
        self.place_size = num_heads * (key_size + head_size)
        self.image = (0, 0)  # Channels and positions of the attended image
        if places:
            channels, *sides = image_size("rmc", input_size, height, width, channels)
            self.image = (channels, sides[0] * sides[1])
        self.place_projection = nn.ModuleList(truncated_linear(c, self.place_size) for c in self.image[:1] if c)
        """One layer, or none without `places`."""

    @classmethod
    def image_options(cls, channels: int, rows: int, cols: int) -> dict[str, int]:
        return {"channels": channels, "height": rows, "width": cols}

    def initial_state(self, batch_size: int) -> RMCState:
        """Return the identity matrix for every environment: [batch_size, N, F]."""
        weight = self.input_projection.weight
        identity = torch.eye(self.num_slots, self.width, dtype=weight.dtype, device=weight.device)
        return RMCState(identity.repeat(batch_size, 1, 1))

    def parts_of_state(self) -> dict[str, list[Axis]]:
        slots, heads = self.num_slots, self.num_heads
        return {"slot": [Axis("memory", 1, slots)], "head": [Axis("memory", 2, heads, self.width // heads)]}

    def forward(self, inputs: Tensor, state: RMCState) -> tuple[Tensor, RMCState]:
        outputs, state, _ = self.unroll_at_once(inputs.unsqueeze(0), None, state, None)
        return outputs[0], state

    def compiles(self, inputs: Tensor) -> bool:
        if self.kind is not RMC or len(self.blocks) != 1 or not stands_for(self, inputs):
            return False
        norms = [part for part in self.blocks[0].children() if isinstance(part, nn.LayerNorm)]
        return len(norms) == 3 and all(norm.eps == EPS and norm.elementwise_affine for norm in norms)

    def _leaves(self, projected: Tensor, gates: Tensor, places: Tensor, memory: Tensor) -> Leaves:
        """Collect the compiled route's inputs from x', its part of the gates, the output of `read_places`, and M."""
        block = cast(RelationalBlock, self.blocks[0])
        layers, gate = cast(list[nn.Linear], list(self.mlp)), cast(list[nn.Linear], list(self.memory_gates))
        return Leaves(
            row=projected,
            gates_input=gates,
            places=places,
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
        inputs, memory = weight.new_empty(1, batch_size, self.input_size), self.initial_state(batch_size).memory
        projected, gates = inputs.new_empty(1, batch_size, self.width), inputs.new_empty(1, batch_size, 2 * self.gates)
        places = self.read_places(inputs)
        leaves = self._leaves(projected, gates, places, memory)
        mlp = [cast(nn.Linear, layer).weight for layer in self.mlp]
        run = fast.prepare(leaves, mlp, memory[0], self.num_heads)
        project = Affine(weight, self.input_projection.bias)
        gate = [
            Affine(layer.weight, layer.bias + self._gate_bias(layer.bias))
            for layer in cast(list[nn.Linear], list(self.input_gates))
        ]
        (no_gates, no_places) = arrays(gates, places)

        def step(inputs: Tensor, reset: Tensor, state: RMCState) -> tuple[Tensor, RMCState]:
            row = project(inputs.numpy())
            gates = gate[0](row)[None] if gate else no_gates
            places = arrays(self.read_places(inputs.unsqueeze(0)))[0] if self.image[1] else no_places
            memory = run(row[None], gates, places, state.memory, reset.numpy())
            return memory.flatten(1), RMCState(memory)

        return step

    def _gate_bias(self, like: Tensor) -> Tensor:
        """Return the constant biases of the input and forget gates, [2 G]."""
        return torch.cat([like.new_full((self.gates,), bias) for bias in self.gate_biases])

    def unroll_at_once(
        self, inputs: Tensor, reset: Tensor | None, state: RMCState, bptt_length: int | None
    ) -> tuple[Tensor, RMCState, Tensor | None]:
        projected = self.input_projection(inputs)
        gates = projected[..., :0]
        for layer in self.input_gates:
            gates = layer(projected) + self._gate_bias(projected)
        places = self.read_places(inputs)
        if self.compiles(inputs):
            leaves, initial = self._leaves(projected, gates, places, state.memory), self.initial_state(1).memory[0]
            mlp = [cast(nn.Linear, layer).weight for layer in self.mlp]
            memory, last = fast.run(leaves, mlp, initial, self.num_heads, reset, bptt_length)
            return memory.flatten(2), RMCState(last), None
        read = torch.cat([projected, gates, places.flatten(2)], 2)
        if reset is None:
            output, state = self._step(read[0], state)
            return output.unsqueeze(0), state, None
        return unroll_step_by_step(self, read, reset, state, bptt_length, self._step)

    def read_places(self, inputs: Tensor) -> Tensor:
        """Inputs [..., input_size] -> keys and values of the image's positions [..., P, H (K + V)]; P = 0: none."""
        channels, count = self.image
        if not count:
            return inputs.new_empty(*inputs.shape[:-1], 0, self.place_size)
        image = inputs[..., : channels * count].unflatten(-1, (channels, count))
        return self.place_projection[0](image.transpose(-1, -2))

    def _step(self, read: Tensor, state: RMCState) -> tuple[Tensor, RMCState]:
        """x', its part of the gates, the places [B, F + 2 G + P H (K + V)], state -> output [B, N F], next state."""
        sizes = [self.width, 2 * self.gates, self.image[1] * self.place_size]
        memory, (projected, gates, places) = state.memory, read.split(sizes, 1)
        places = places.unflatten(1, (self.image[1], self.place_size))
        slots = torch.cat([memory, projected.unsqueeze(1)], 1)
        for depth, block in enumerate(self.blocks, 1):
            # Only a further block reads the updated input.
            slots = block(slots, places, self.num_slots + (depth < len(self.blocks)), self.mlp)
        for layer in self.memory_gates:
            i, f = torch.sigmoid(gates.unsqueeze(1) + layer(memory.tanh())).chunk(2, 2)
            slots = i * slots.tanh() + f * memory
        return slots.flatten(1), RMCState(slots)
