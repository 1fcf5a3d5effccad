"""Fast Weight Memory (Schlag et al. 2021, "Learning associative inference using fast weight memory")."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..kernels import Linear
from .core import Core, Route, Step, Unrolled, under_torch_func
from .fast.acting import Affine, write_and_read
from .fast.routes import arrays, stands_for
from .lstm import LSTM, LSTMState
from .parts import fast_weights
from .parts.fast_weights import Block, Read, Write

BLOCK = 32  # Largest number of steps that an unroll processes at once


class FWMState(NamedTuple):
    """The LSTM's state and the fast weights, memory [B, d, d, d] (axes: first key, second key, value)."""

    controller: LSTMState
    memory: Tensor


class FWM(Core):
    """Fast weight memory: an LSTM that writes to and reads from a tensor of fast weights.

    F [d, d, d], d = memory_size, R = num_reads:

        h_t = LSTM(x_t, h_{t-1})
        [k1, k2, v] = tanh(W_write h + b),  beta = sigmoid(w_beta h + b + beta_bias)        (equations 1, 2)
        v_old = F_{t-1} (k1 (x) k2)
        F'_t = F_{t-1} + write_scale beta k1 (x) k2 (x) (v - v_old)                         (equation 3)
        F_t = F'_t / max(1, |F'_t|_2), norm over the whole tensor, with gradient            (equation 4)
        n^0 = tanh(W_n h + b),  e^i = tanh(W_e^i h + b), i = 1..R                           (equations 5, 6)
        n^i = LN(F_t (n^{i-1} (x) e^i)), LN without scale and offset                        (equation 7)
        output = h + W_o n^R + b                                                            (equation 8, section 3.1)

    The defaults are the paper's; the released RL code has `write_scale` 1/d, `beta_bias` 1 and no tanh in equations 5
    and 6. Linear layers have biases, as in the released code and unlike in the paper. W_write and the weights of n^0
    and e^i are sampled from U(+-sqrt(6 / (hidden_size + d))) as in that code, others as in torch (`memory_span`: see
    LSTM). The initial state is zero.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        memory_size: int = 16,
        num_reads: int = 3,
        write_scale: float = 1.0,
        beta_bias: float = 0.0,
        memory_span: int = 0,
    ) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.memory_size, self.num_reads = memory_size, num_reads
        self.write_scale, self.beta_bias = write_scale, beta_bias
        self.controller = LSTM(input_size, hidden_size, memory_span)
        self.write = Linear(hidden_size, 3 * memory_size + 1)
        self.read = Linear(hidden_size, (1 + num_reads) * memory_size)
        self.out = Linear(memory_size, hidden_size)
        bound = (6 / (hidden_size + memory_size)) ** 0.5
        nn.init.uniform_(self.write.weight, -bound, bound)
        nn.init.uniform_(self.read.weight, -bound, bound)

    def initial_state(self, batch_size: int) -> FWMState:
        shape = (batch_size, *[self.memory_size] * 3)
        return FWMState(self.controller.initial_state(batch_size), self.out.weight.new_zeros(shape))

    def forward(self, inputs: Tensor, state: FWMState) -> tuple[Tensor, FWMState]:
        hidden, controller = self.controller(inputs, state.controller)
        memory = fast_weights.write(state.memory, self.compute_write(hidden))
        read = fast_weights.read(memory, self.compute_read(hidden))
        return hidden + self.out(read), FWMState(controller, memory)

    def fast_route(self, inputs: Tensor) -> Route | None:
        # vmap cannot pass through the gradient of a block, which is implemented explicitly.
        return None if under_torch_func() else self.unroll_pieces

    def fast_step(self, batch_size: int) -> Step | None:
        controller = self.controller.fast_step(batch_size)
        if controller is None or not stands_for(self, self.out.weight):
            return None
        size, count = self.memory_size, self.read.out_features
        write, read, out = (Affine(layer.weight, layer.bias) for layer in (self.write, self.read, self.out))
        (rates,) = arrays(self.out.weight.new_tensor([self.write_scale, self.beta_bias]))

        def step(inputs: Tensor, reset: Tensor, state: FWMState) -> tuple[Tensor, FWMState]:
            hidden, after = controller(inputs, reset, state.controller)
            h, memory, result = hidden.numpy(), hidden.new_empty(state.memory.shape), hidden.new_empty(batch_size, size)
            before, new = arrays(state.memory.flatten(2), memory.flatten(2))
            write_and_read(before, reset.numpy(), write(h), rates, read(h), count, new, result.numpy())
            output = torch.from_numpy(out(result.numpy()))
            return hidden + output, FWMState(after, memory)

        return step

    def unroll_pieces(self, inputs: Tensor, reset: Tensor, state: FWMState, bptt_length: int | None) -> Unrolled:
        """Run `unroll` in blocks of steps. The blocks are the same for every batch and may contain resets."""
        hidden, controller, _ = self.controller.unroll(inputs, reset, state.controller, bptt_length)
        memory, reads = state.memory, list[Tensor]()
        for piece in range(0, len(reset), bptt_length or len(reset)):
            memory = memory.detach() if piece else memory
            end = min(piece + (bptt_length or len(reset)), len(reset))
            length = -(-(end - piece) // -(-(end - piece) // BLOCK))
            for start in range(piece, end, length):
                part = slice(start, min(start + length, end))
                steps, fresh = hidden[part].transpose(0, 1), reset[part].t()
                block = Block(memory, self.compute_write(steps), fresh)
                reads.append(block.read(self.compute_read(steps)).transpose(0, 1))
                memory = block.end()
        return hidden + self.out(torch.cat(reads)), FWMState(controller, memory), None

    def compute_write(self, hidden: Tensor) -> Write:
        """Return a step's write from the controller's output h [..., hidden_size]."""
        keys, rate = self.write(hidden).split([3 * self.memory_size, 1], dim=-1)
        key1, key2, value = keys.tanh().chunk(3, dim=-1)
        return Write(key1, key2, value, self.write_scale * torch.sigmoid(rate + self.beta_bias))

    def compute_read(self, hidden: Tensor) -> Read:
        """Return a step's read from the controller's output h [..., hidden_size]."""
        query, hops = self.read(hidden).tanh().split([self.memory_size, self.num_reads * self.memory_size], dim=-1)
        return Read(query, hops.unflatten(-1, (self.num_reads, self.memory_size)))
