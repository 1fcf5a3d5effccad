"""mLSTM (Beck et al. 2024, "xLSTM: Extended long short-term memory", section 2.3): an LSTM with a matrix state."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...sequence.chunks import unroll_chunks
from ..parts.stack import Mixer, Stack


class MLSTMState(NamedTuple):
    """c [B, num_layers, num_heads, d, d + 1]: C^T with last column n; m [B, num_layers, num_heads]: the stabilizer."""

    c: Tensor
    m: Tensor


class MLSTM(Stack):
    """mLSTM of xLSTM: residual layers, each an LSTM with a matrix as its cell.

    One matrix C per head; d = head_size; the layers are those of `parts/stack.py`.

        q, v = W_q u, W_v u,  k = W_k u / sqrt(d),  o = sigmoid(W_o u)                        (equations 21 to 24, 27)
        i = exp(i'), i' = w_i u + b_i;   f = sigmoid(f'), f' = w_f u + b_f                    (equations 25, 26)
        m_t = max(log f_t + m_{t-1}, i'_t)                                                    (equation 15)
        C_t = exp(log f + m_{t-1} - m_t) C_{t-1} + exp(i' - m_t) v k^T                        (equation 19)
        n_t = exp(log f + m_{t-1} - m_t) n_{t-1} + exp(i' - m_t) k                            (equation 20)
        h = C_t q / max(|n_t q|, exp(-m_t))                                                   (equation 21)
        added = W_p [o * LayerNorm(h)]                                                        norm per head

    Choices left open by the paper: f is a sigmoid, not an exponential function; C, n and m start at zero; 1 in
    equation 21 is exp(-m) for the stabilized state, as in the released code (github.com/NX-AI/xlstm); no convolution,
    no up-projection and no learned skip around the cell. Initially, b_i is normal with deviation 0.1, b_f is evenly
    spread from 3 to 6, and w_i and w_f are 0, also as in that code. An unroll works on chunks of steps.
    """

    def __init__(
        self, input_size: int, hidden_size: int = 128, num_layers: int = 1, num_heads: int = 4, head_size: int = 32
    ) -> None:
        mixers: list[Mixer] = [MLSTMMixer(hidden_size, num_heads, head_size) for _ in range(num_layers)]
        super().__init__(input_size, hidden_size, mixers)


class MLSTMMixer(Mixer):
    """One layer of `MLSTM`, whose docstring has the equations."""

    def __init__(self, hidden_size: int, num_heads: int, head_size: int) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, head_size
        # Rows: q, k, v, o.
        self.maps = nn.Linear(hidden_size, 4 * num_heads * head_size, bias=False)
        self.gates = nn.Linear(hidden_size, 2 * num_heads)  # rows: i', f'
        self.scale = nn.Parameter(torch.ones(num_heads, head_size))
        self.out = nn.Linear(num_heads * head_size, hidden_size, bias=False)
        with torch.no_grad():
            self.gates.weight.zero_()
            self.gates.bias[:num_heads].normal_(0, 0.1)
            self.gates.bias[num_heads:] = torch.linspace(3, 6, num_heads)

    def initial_state(self, batch_size: int) -> MLSTMState:
        c = self.scale.new_zeros(batch_size, self.num_heads, self.head_size, self.head_size + 1)
        return MLSTMState(c, self.scale.new_zeros(batch_size, self.num_heads))

    def forward(
        self, u: Tensor, state: MLSTMState, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, MLSTMState]:
        query, key, value, gate = self.maps(u).unflatten(-1, (4, self.num_heads, self.head_size)).unbind(-3)
        log_input, forget = self.gates(u).chunk(2, -1)
        key, log_forget = key / math.sqrt(self.head_size), F.logsigmoid(forget)
        value = F.pad(value, (0, 1), value=1.0)  # [..., H, d + 1]: reads n, too
        if reset is None:
            m = torch.maximum(log_forget + state.m, log_input)
            decay, new = (log_forget + state.m - m).exp(), (log_input - m).exp()
            c = decay[..., None, None] * state.c + new[..., None, None] * (key.unsqueeze(3) * value.unsqueeze(2))
            h = _normalize(torch.einsum("bhkv,bhk->bhv", c, query), m)
        else:
            steps = (query, key, value, log_input, log_forget)
            h, (c, m) = unroll_chunks(_chunk, steps, reset, state, self.initial_state, bptt_length)
        h = torch.sigmoid(gate) * F.layer_norm(h, h.shape[-1:]) * self.scale
        return self.out(h.flatten(-2)), MLSTMState(c, m)


def _normalize(read: Tensor, m: Tensor) -> Tensor:
    """C q with an appended n q [..., d + 1] -> h [..., d]."""
    return read[..., :-1] / torch.maximum(read[..., -1].abs(), (-m).exp()).unsqueeze(-1)


def _chunk(steps: tuple[Tensor, ...], used: Tensor, start: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute a chunk of L steps (`chunks.Chunk`): h [N, L, H, d], and the final C and m. With F_t the sum of log f,
    m_t = max(F_t + m_0, F_t - F_j + i'_j for j <= t), and every factor is exp(... - m_t)."""
    query, key, value, log_input, log_forget = steps
    c, m = start
    log_forget = torch.where(used[..., None], log_forget, 0.0).transpose(1, 2)  # [N, H, L]
    log_input = torch.where(used[..., None], log_input, -torch.inf).transpose(1, 2)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    total = log_forget.cumsum(2)
    stabilizer = total + torch.maximum(m.unsqueeze(2), (log_input - total).cummax(2).values)
    causal = torch.ones(total.shape[2], total.shape[2], dtype=torch.bool, device=total.device).tril()
    exponent = (total - stabilizer).unsqueeze(3) + (log_input - total).unsqueeze(2)
    weight = torch.where(causal, exponent, -torch.inf).exp()
    at_start = (total + m.unsqueeze(2) - stabilizer).exp().unsqueeze(3)
    read = at_start * (query @ c) + (weight * (query @ key.mT)) @ value
    after = at_start[:, :, -1, None] * c + (weight[:, :, -1].unsqueeze(3) * key).mT @ value
    return _normalize(read, stabilizer).transpose(1, 2), (after, stabilizer[:, :, -1])
