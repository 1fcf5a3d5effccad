"""AGaLiTe (Pramanik et al. 2024, "Approximate gated linear transformers for online reinforcement learning")."""

import math
from typing import Any, NamedTuple, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import Route
from ..fast.hadamard import remember
from ..fast.routes import stands_for
from ..gtrxl import Gate
from .hadamard import since_reset
from .stack import AtOnce, Steps

Traces: TypeAlias = tuple[Tensor, Tensor, Tensor]  # V, K and s of one layer


class AGaLiTeState(NamedTuple):
    values: Tensor  # [B, num_layers, n, heads, d], n = ceil(r / 2)
    keys: Tensor  # [B, num_layers, n, heads, eta d]
    norm: Tensor  # [B, num_layers, heads, eta d]
    step: Tensor  # int64 [B]: steps since the reset


class AGaLiTe(AtOnce):
    """AGaLiTe: layers of gated linear attention with r pairs of oscillating traces; d = head_size, (x) outer product.

        x^0 = relu(W_e input + b_e),  u = LayerNorm(x^{l-1})
        k = relu(W_k u) (x) relu(W_1 u),  q = relu(W_q u) (x) relu(W_2 u)        eta d values per head   (section 3.1)
        g = sigmoid(W_g u) (x) sigmoid(W_3 u),  b = sigmoid(W_b u),  v = W_v u
        V^i_t = (1 - b) * V^i_{t-1} + cos(w_i t) b * v                           i = 1 .. r               (section 3.2)
        K^i_t = (1 - g) * K^i_{t-1} + cos(w_i t) g * k
        s_t = (1 - g) * s_{t-1} + g * k
        a_t = sum_i V^i_t (K^i_t . q) / (2 r s_t . q + 1e-5)
        y = gate(x^{l-1}, relu(W_o a + b_o)),  x^l = gate(y, relu(MLP(LayerNorm(y))))   gates: see `GTrXL`

    All maps have biases. As in the released code (github.com/subho406/agalite), w is evenly spread from -pi to pi (in
    the paper: multiples of one frequency), initial weights are orthogonal of gain sqrt(2), biases are zero, and the
    clock t starts at 2; unlike there, it restarts with every episode. Traces of w and -w are equal, so the state
    contains one of each pair. An unroll uses only the factors of g, k and q: K and s are matrices [eta, d] per head.
    """

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
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.encoder = _orthogonal(nn.Linear(input_size, hidden_size))
        sizes = (hidden_size, num_heads, head_size, mlp_size, eta, r)
        self.layers = nn.ModuleList(Layer(*sizes) for _ in range(num_layers))

    def initial_state(self, batch_size: int) -> AGaLiTeState:
        layer, new = cast(Layer, self.layers[0]), self.encoder.weight.new_zeros
        shape, heads = (batch_size, len(self.layers)), (layer.num_heads, layer.head_size)
        features = (layer.num_heads, layer.eta * layer.head_size)
        values, keys = new(*shape, layer.traces, *heads), new(*shape, layer.traces, *features)
        step = torch.zeros(batch_size, dtype=torch.int64, device=keys.device)
        return AGaLiTeState(values, keys, new(*shape, *features), step)

    def fast_route(self, inputs: Tensor) -> Route | None:
        return self.unroll_at_once if stands_for(self, inputs) else None

    def _run(self, inputs: Tensor, state: AGaLiTeState, steps: Steps | None) -> tuple[Tensor, AGaLiTeState]:
        step = since_reset(steps, state.step)
        x, traces = F.relu(self.encoder(inputs)), list[Traces]()
        for index, layer in enumerate(self.layers):
            x, after = layer(x, step, tuple(leaf[:, index] for leaf in state[:3]), steps)
            traces.append(after)
        values, keys, norm = (torch.stack(leaves, 1) for leaves in zip(*traces, strict=True))
        return x, AGaLiTeState(values, keys, norm, (step if steps is None else step[-1]) + 1)


class Layer(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int, head_size: int, mlp_size: int, eta: int, r: int) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.eta, self.r = num_heads, head_size, eta, r
        self.traces = r - r // 2  # One per pair of w and -w
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.maps = _orthogonal(nn.Linear(hidden_size, 5 * num_heads * head_size))  # rows: k, q, v, b, g
        self.features = _orthogonal(nn.Linear(hidden_size, 3 * num_heads * eta))  # rows: W_1, W_2, W_3
        self.out = _orthogonal(nn.Linear(num_heads * head_size, hidden_size))
        self.mlp = nn.Sequential(
            _orthogonal(nn.Linear(hidden_size, mlp_size)), nn.ReLU(), _orthogonal(nn.Linear(mlp_size, hidden_size))
        )
        self.gate_1, self.gate_2 = Gate(hidden_size), Gate(hidden_size)

    def forward(self, x: Tensor, step: Tensor, traces: Traces, steps: Steps | None) -> tuple[Tensor, Traces]:
        """x [B, hidden_size], step [B], with `steps` [T, B, ...], and V, K and s -> the next x, the last V, K and s."""
        if steps is not None:
            return self._unroll(x, step, traces, steps)
        key, query, value, beta, gamma, wave = self._map(x, step)
        wave = wave[..., None, None]  # [B, n, 1, 1]
        values, keys, norm = traces
        key, query, gamma = _outer(*key), _outer(*query), _outer(*gamma)
        values = (1 - beta).unsqueeze(1) * values + wave * (beta * value).unsqueeze(1)
        keys = (1 - gamma).unsqueeze(1) * keys + wave * (gamma * key).unsqueeze(1)
        norm = (1 - gamma) * norm + gamma * key
        weight = (keys * query.unsqueeze(1)).sum(-1)  # [B, n, heads]
        read = (self._counts(x)[:, None, None] * weight.unsqueeze(-1) * values).sum(1)
        return self._output(x, read, (norm * query).sum(-1)), (values, keys, norm)

    def _unroll(self, x: Tensor, step: Tensor, traces: Traces, steps: Steps) -> tuple[Tensor, Traces]:
        key, query, value, beta, gamma, wave = self._map(x, step)
        (values, keys, norm), count, (reset, cut) = traces, self.traces, steps
        # s is a K whose wave is 1. Rows of a head's matrix: by trace, then by eta.
        waves = torch.cat([wave, torch.ones_like(wave[..., :1])], -1)[..., None, :, None]
        written = (waves * (gamma[1] * key[1]).unsqueeze(-2)).flatten(-2)
        decay, read = (part.repeat(1, 1, 1, count + 1) for part in (gamma[1], query[1]))
        start = torch.cat([keys, norm.unsqueeze(1)], 1).unflatten(3, (self.eta, -1)).transpose(1, 2).flatten(2, 3)
        write = (gamma[0] * key[0], written)
        of_keys, after = remember("complement", (gamma[0], decay), write, read, reset, start, cut, reads=count + 1)
        weight = (of_keys * query[0].unsqueeze(-2)).sum(-1)  # [T, B, heads, n + 1]
        after = after.unflatten(2, (count + 1, -1)).transpose(1, 2).flatten(3)
        weight, total = weight[..., :-1], weight[..., -1]
        write, read, start = (beta * value, wave.unsqueeze(2).expand_as(weight)), self._counts(x) * weight, values
        attended, values = remember("complement", (beta, None), write, read, reset, start.transpose(1, 2), cut)
        return self._output(x, attended.squeeze(3), total), (values.transpose(1, 2), after[:, :-1], after[:, -1])

    def _map(self, x: Tensor, step: Tensor) -> tuple[Any, ...]:
        """Return factors [..., heads, d] and [..., heads, eta] of k and q, v and b [..., heads, d], factors of g, and
        cos(w t) [..., n]."""
        u = self.norm_1(x)
        key, query, value, beta, gamma = self.maps(u).unflatten(-1, (5, self.num_heads, self.head_size)).unbind(-3)
        first, second, third = self.features(u).unflatten(-1, (3, self.num_heads, self.eta)).unbind(-3)
        frequencies = torch.linspace(-math.pi, math.pi, self.r, device=x.device, dtype=x.dtype)[self.r // 2 :]
        wave = torch.cos((step + 2).unsqueeze(-1) * frequencies)
        key, query = (F.relu(key), F.relu(first)), (F.relu(query), F.relu(second))
        return key, query, value, torch.sigmoid(beta), (torch.sigmoid(gamma), torch.sigmoid(third)), wave

    def _counts(self, like: Tensor) -> Tensor:
        """Return how many of the r frequencies each trace represents, [n]."""
        return 2 - (torch.arange(self.traces, device=like.device) < self.r % 2).to(like.dtype)

    def _output(self, x: Tensor, read: Tensor, total: Tensor) -> Tensor:
        """x [..., hidden_size], sum_i V^i (K^i . q) [..., heads, d], s . q [..., heads] -> the next layer's x."""
        attended = (read / (2 * self.r * total + 1e-5).unsqueeze(-1)).flatten(-2)
        y = self.gate_1(x, F.relu(self.out(attended)))
        return self.gate_2(y, F.relu(self.mlp(self.norm_2(y))))


def _outer(x: Tensor, features: Tensor) -> Tensor:
    """x [..., d] (x) features [..., eta] -> [..., eta d]."""
    return (features.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)


def _orthogonal(layer: nn.Linear) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, math.sqrt(2))
    nn.init.zeros_(layer.bias)
    return layer
