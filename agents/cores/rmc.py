"""Relational memory core (Santoro et al. 2018, "Relational recurrent neural networks").

The form is that of the authors' released code after its correction of the attention scale; where it differs from the
paper's text is said in the class's description.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..kernels import Linear
from . import rmc_native
from .core import Core, at_least_one, full_precision
from .recurrence import run, run_once
from .rmc_steps import RMCShape, RMCSteps

Gate = Literal["unit", "memory"]


class RMCState(NamedTuple):
    """memory [B, num_slots, num_heads * head_size]."""

    memory: Tensor


def truncated_linear(in_features: int, out_features: int) -> Linear:
    """A linear layer with zero bias and weights N(0, 1/in_features) cut at two standard deviations."""
    layer = Linear(in_features, out_features)
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
        key_size = head_size if key_size is None else key_size
        at_least_one(num_slots=num_slots, num_heads=num_heads, head_size=head_size, key_size=key_size)
        at_least_one(num_blocks=num_blocks, mlp_layers=mlp_layers)
        if gate not in ("unit", "memory", None):
            raise ValueError(f"unknown gate {gate!r} of core 'rmc'; allowed: 'unit', 'memory' or None")
        self.width = width = num_heads * head_size
        self.input_size, self.output_size = input_size, num_slots * width
        self.input_bias, self.forget_bias = input_bias, forget_bias
        gates = 0 if gate is None else width if gate == "unit" else 1
        self.shape = RMCShape(num_slots, num_heads, key_size, num_blocks, mlp_layers, gates)
        self.input_projection = truncated_linear(input_size, width)
        qkv_width = num_heads * (2 * key_size + head_size)
        self.blocks = nn.ModuleList(RelationalBlock(width, qkv_width) for _ in range(num_blocks))
        self.mlp = nn.ModuleList(truncated_linear(width, width) for _ in range(mlp_layers))
        # Lists of one gate layer or none.
        self.input_gates = nn.ModuleList(truncated_linear(width, 2 * gates) for _ in range(gates > 0))
        self.memory_gates = nn.ModuleList(truncated_linear(width, 2 * gates) for _ in range(gates > 0))

    def initial_state(self, batch_size: int) -> RMCState:
        """The identity matrix in every row of the batch: [batch_size, N, F]."""
        return RMCState(self._identity().repeat(batch_size, 1, 1))

    def _identity(self) -> Tensor:
        weight = self.input_projection.weight
        return torch.eye(self.shape.slots, self.width, dtype=weight.dtype, device=weight.device)

    @full_precision
    def forward(self, inputs: Tensor, state: RMCState) -> tuple[Tensor, RMCState]:
        """inputs [B, input_size], state -> output [B, N F], next state."""
        tensors = self._tensors(inputs.unsqueeze(0))
        if rmc_native.suits(self.shape, inputs):
            no_reset = torch.zeros(1, len(inputs), dtype=torch.bool)
            memory = rmc_native.run(self.shape, tensors, state.memory, self._identity(), no_reset, None)[1]
            state = RMCState(memory)
        else:
            state = run_once(self._steps, tensors, state)
        return state.memory.flatten(1), state

    @full_precision
    def unroll(
        self, inputs: Tensor, reset: Tensor, state: RMCState, bptt_length: int | None = None
    ) -> tuple[Tensor, RMCState, None]:
        """As `Core.unroll`; all that depends on the inputs alone is computed for all steps at once."""
        tensors = self._tensors(inputs)
        if rmc_native.suits(self.shape, inputs):
            memory, last = rmc_native.run(self.shape, tensors, state.memory, self._identity(), reset, bptt_length)
            return memory.flatten(2), RMCState(last), None
        initial = self.initial_state(inputs.shape[1])
        memory, state = run(self._steps, tensors, state, initial, reset, bptt_length)
        return memory.flatten(2), state, None

    def _steps(self, *tensors: Tensor) -> RMCSteps:
        return RMCSteps(self.shape, *tensors)

    def _tensors(self, inputs: Tensor) -> list[Tensor]:
        """What `RMCSteps` takes, for inputs [T, B, input_size]."""
        projected = self.input_projection(inputs)
        tensors = [projected]
        for layer in self.input_gates:
            biases = projected.new_tensor([self.input_bias, self.forget_bias]).repeat_interleave(self.shape.gates)
            tensors.append(layer(projected) + biases)
        return [*tensors, *self.blocks.parameters(), *self.mlp.parameters(), *self.memory_gates.parameters()]
