"""AGaLiTe (Pramanik et al. 2024, "Approximate gated linear transformers for online reinforcement learning")."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...unrolling.scan import scan
from ..contract.conditions import readable, under_torch_func
from ..core import Core, Route
from ..gtrxl import Gate
from .shm import steps_since_reset


class AGaLiTeState(NamedTuple):
    """Traces of every layer, L = num_layers, and the steps since the reset. values [B, L, r, heads, d], keys [B, L, r,
    heads, eta d], norm [B, L, heads, eta d], step int64 [B]."""

    values: Tensor
    keys: Tensor
    norm: Tensor
    step: Tensor


class AGaLiTe(Core):
    """Layers of gated linear attention over feature maps, its matrix approximated by r pairs of oscillating traces.

        x^0 = relu(W_e input + b_e),  u = LayerNorm(x^{l-1})
        k = relu(W_k u) (x) relu(W_1 u),  q = relu(W_q u) (x) relu(W_2 u)        eta d values per head   (section 3.1)
        g = sigmoid(W_g u) (x) sigmoid(W_3 u),  b = sigmoid(W_b u),  v = W_v u
        V^i_t = (1 - b) * V^i_{t-1} + cos(w_i t) b * v                           i = 1 .. r               (section 3.2)
        K^i_t = (1 - g) * K^i_{t-1} + cos(w_i t) g * k
        s_t = (1 - g) * s_{t-1} + g * k
        a_t = sum_i V^i_t (K^i_t . q) / (2 r s_t . q + 1e-5)
        y = gate(x^{l-1}, relu(W_o a + b_o)),  x^l = gate(y, relu(MLP(LayerNorm(y))))   gates: see `GTrXL`

    d = head_size, (x) the outer product; all maps have biases. The output is x of the last layer. All recurrences are
    elementwise and run as one scan each.

    The paper's frequencies are multiples of one; the released code (github.com/subho406/agalite) spreads w evenly from
    -pi to pi, which is taken here, as are its 1e-5, orthogonal first weights of gain sqrt(2), zero biases, and a clock
    t that begins at 2. Its clock continues through resets, here it restarts with every episode, so that an episode's
    outputs do not depend on the one before. One layer by default.
    """

    loops_over_time = False

    constant_leaves = ("keys", "norm")  # two sums over the same past, whose ratio only an empty past keeps bounded

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        num_layers: int = 1,
        num_heads: int = 4,
        head_size: int = 32,
        mlp_size: int = 128,
        eta: int = 4,
        r: int = 4,
        gate_bias: float = 2.0,
    ) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.encoder = _orthogonal(nn.Linear(input_size, hidden_size))
        self.layers = nn.ModuleList(
            Layer(hidden_size, num_heads, head_size, mlp_size, eta, r, gate_bias) for _ in range(num_layers)
        )

    def initial_state(self, batch_size: int) -> AGaLiTeState:
        layer = self.layers[0]
        assert isinstance(layer, Layer)
        heads, size, features = layer.num_heads, layer.head_size, layer.eta * layer.head_size
        shape = (batch_size, len(self.layers))
        new = self.encoder.weight.new_zeros
        step = torch.zeros(batch_size, dtype=torch.int64, device=self.encoder.weight.device)
        return AGaLiTeState(
            new(*shape, layer.r, heads, size), new(*shape, layer.r, heads, features), new(*shape, heads, features), step
        )

    def forward(self, inputs: Tensor, state: AGaLiTeState) -> tuple[Tensor, AGaLiTeState]:
        x, traces = F.relu(self.encoder(inputs)), list[list[Tensor]]()
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            ((keep_value, values), (keep_key, keys), (keep, norm)), query = layer.mapped(x, state.step)
            after = [
                keep_value * state.values[:, number] + values,
                keep_key * state.keys[:, number] + keys,
                keep * state.norm[:, number] + norm,
            ]
            traces.append(after)
            x = layer.output(x, *after, query)
        values, keys, norm = (torch.stack(leaves, 1) for leaves in zip(*traces, strict=True))
        return x, AGaLiTeState(values, keys, norm, state.step + 1)

    def fast_route(self, inputs: Tensor) -> Route | None:
        return None if under_torch_func() or not readable(inputs) else self.unroll_at_once

    def unroll_at_once(
        self, inputs: Tensor, reset: Tensor, state: AGaLiTeState, bptt_length: int | None = None
    ) -> tuple[Tensor, AGaLiTeState, Tensor | None]:
        step = steps_since_reset(reset, state.step)
        x, traces = F.relu(self.encoder(inputs)), list[list[Tensor]]()
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            pairs, query = layer.mapped(x, step)
            before = (state.values[:, number], state.keys[:, number], state.norm[:, number])
            whole = [
                scan(decay.expand_as(added), added, reset, start, bptt_length)
                for (decay, added), start in zip(pairs, before, strict=True)
            ]
            traces.append([trace[-1] for trace in whole])
            x = layer.output(x, *whole, query)
        values, keys, norm = (torch.stack(leaves, 1) for leaves in zip(*traces, strict=True))
        return x, AGaLiTeState(values, keys, norm, step[-1] + 1), None


class Layer(nn.Module):
    """One layer of `AGaLiTe`, whose docstring has the equations."""

    def __init__(
        self, hidden_size: int, num_heads: int, head_size: int, mlp_size: int, eta: int, r: int, gate_bias: float
    ) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.eta, self.r = num_heads, head_size, eta, r
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.maps = _orthogonal(nn.Linear(hidden_size, 5 * num_heads * head_size))  # rows: k, q, v, b, g
        self.features = _orthogonal(nn.Linear(hidden_size, 3 * num_heads * eta))  # rows: W_1, W_2, W_3
        self.out = _orthogonal(nn.Linear(num_heads * head_size, hidden_size))
        self.mlp = nn.Sequential(
            _orthogonal(nn.Linear(hidden_size, mlp_size)), nn.ReLU(), _orthogonal(nn.Linear(mlp_size, hidden_size))
        )
        self.gate_1, self.gate_2 = Gate(hidden_size, gate_bias), Gate(hidden_size, gate_bias)

    def mapped(self, x: Tensor, step: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """The factor and the addition of V, of K and of s, and q [..., heads, eta d]."""
        u = self.norm_1(x)
        key, query, value, beta, gamma = self.maps(u).unflatten(-1, (5, self.num_heads, self.head_size)).unbind(-3)
        first, second, third = self.features(u).unflatten(-1, (3, self.num_heads, self.eta)).unbind(-3)
        key, query = _outer(F.relu(key), F.relu(first)), _outer(F.relu(query), F.relu(second))
        gamma, beta = _outer(torch.sigmoid(gamma), torch.sigmoid(third)), torch.sigmoid(beta)
        frequencies = torch.linspace(-math.pi, math.pi, self.r, device=x.device, dtype=x.dtype)
        wave = torch.cos((step + 2).unsqueeze(-1) * frequencies)[..., None, None]  # [..., r, 1, 1]
        values, keys = (beta * value).unsqueeze(-3), (gamma * key).unsqueeze(-3)
        pairs = [
            ((1 - beta).unsqueeze(-3), wave * values),
            ((1 - gamma).unsqueeze(-3), wave * keys),
            (1 - gamma, gamma * key),
        ]
        return pairs, query

    def output(self, x: Tensor, values: Tensor, keys: Tensor, norm: Tensor, query: Tensor) -> Tensor:
        """x [..., hidden_size] and the traces -> the next layer's x."""
        weight = (keys * query.unsqueeze(-3)).sum(-1, keepdim=True)  # [..., r, heads, 1]
        total = 2 * self.r * (norm * query).sum(-1, keepdim=True) + 1e-5
        attended = ((values * weight).sum(-3) / total).flatten(-2)
        y = self.gate_1(x, F.relu(self.out(attended)))
        return self.gate_2(y, F.relu(self.mlp(self.norm_2(y))))


def _outer(x: Tensor, features: Tensor) -> Tensor:
    """x [..., d] (x) features [..., eta] -> [..., eta d]."""
    return (features.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)


def _orthogonal(layer: nn.Linear) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, math.sqrt(2))
    nn.init.zeros_(layer.bias)
    return layer
