"""Stable Hadamard Memory (Le et al. 2025): a matrix that is calibrated element by element."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..fast.hadamard import remember
from ..parts.stack import Mixer, Stack


class SHMState(NamedTuple):
    """memory [B, num_layers, d, d] (axes: value, key) and step, int64 [B, num_layers]: steps since the reset."""

    memory: Tensor
    step: Tensor


class SHM(Stack):
    """Stable Hadamard memory: residual layers, each a matrix that is calibrated element by element.

    M [d, d], d = memory_size; the layers are those of `parts/stack.py`.

        k, q = relu(W_k u) / sum, relu(W_q u) / sum;   v = W_v u;   e = sigmoid(w_e u)
        C_t = 1 + tanh(theta_t (W_c u)^T)                                       calibration (section 3.2)
        M_t = C_t * M_{t-1} + e v k^T                                           update      (section 3.1)
        added = W_o [M_t q + W_s u]                                             read, with a shortcut

    theta_t [d] is one of `num_thetas` learned rows, a random one at every step, so that products of C_t neither vanish
    nor explode (section 3.2). The released code (github.com/thaihungle/SHM) rounds uniform values from [0, 1) down, so
    the row is always the first; `num_thetas=1` reproduces this.

    Our choice: the row is a pseudo-random function of the steps since the reset, so that actor and learner, and all
    runs, use the same row. As in the code, 1e-5 is added to sums, rows of theta are Xavier-uniform, and there is a
    shortcut. One layer by default.
    """

    def __init__(
        self, input_size: int, hidden_size: int = 128, num_layers: int = 1, memory_size: int = 32, num_thetas: int = 128
    ) -> None:
        mixers: list[Mixer] = [SHMMixer(hidden_size, memory_size, num_thetas) for _ in range(num_layers)]
        super().__init__(input_size, hidden_size, mixers)


class SHMMixer(Mixer):
    """One layer of `SHM`, whose docstring has the equations."""

    compiled = True

    def __init__(self, hidden_size: int, memory_size: int, num_thetas: int) -> None:
        super().__init__()
        self.memory_size, self.num_thetas = memory_size, num_thetas
        # Rows: k, q, v, the calibration's vector, the shortcut.
        self.maps = nn.Linear(hidden_size, 5 * memory_size, bias=False)
        self.rate = nn.Linear(hidden_size, 1, bias=False)
        self.thetas = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_thetas, memory_size)))
        self.out = nn.Linear(memory_size, hidden_size)

    def initial_state(self, batch_size: int) -> SHMState:
        memory = self.thetas.new_zeros(batch_size, self.memory_size, self.memory_size)
        return SHMState(memory, torch.zeros(batch_size, dtype=torch.int64, device=memory.device))

    def forward(
        self, u: Tensor, state: SHMState, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, SHMState]:
        key, query, value, vector, shortcut = self.maps(u).chunk(5, -1)
        key, query = (F.relu(x) / (F.relu(x).sum(-1, keepdim=True) + 1e-5) for x in (key, query))
        value = torch.sigmoid(self.rate(u)) * value
        step = state.step if reset is None else steps_since_reset(reset, state.step)
        theta = self.thetas[scrambled(step) % self.num_thetas]
        if reset is None:
            calibration = 1 + torch.tanh(theta.unsqueeze(-1) * vector.unsqueeze(-2))
            memory = calibration * state.memory + value.unsqueeze(-1) * key.unsqueeze(-2)
            read = (memory @ query.unsqueeze(-1)).squeeze(-1)
        else:
            theta, vector, value, key, query = (x.unsqueeze(2) for x in (theta, vector, value, key, query))
            start, step = state.memory.mT.unsqueeze(1), step[-1]
            read, memory = remember("tanh", (theta, vector), (value, key), query, reset, start, bptt_length)
            read, memory = read.flatten(2), memory.squeeze(1).mT
        return self.out(read + shortcut), SHMState(memory, step + 1)


def steps_since_reset(reset: Tensor, start: Tensor) -> Tensor:
    """Return the steps since the last reset at each of T steps, int64 [T, B]; `start` [B] are those before step 0."""
    time = torch.arange(len(reset), device=reset.device).unsqueeze(1)
    began = torch.where(reset, time, -1).cummax(0).values
    return torch.where(began >= 0, time - began, time + start)


def scrambled(x: Tensor) -> Tensor:
    """Return a pseudo-random 31-bit integer for each nonnegative integer (xorshift and multiplication)."""
    x = ((x + 1) * 0x9E3779B1) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return (x ^ (x >> 12)) & 0x7FFFFFFF
