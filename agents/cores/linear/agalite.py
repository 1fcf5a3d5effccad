"""AGaLiTe (Pramanik et al. 2024, "Approximate gated linear transformers for online reinforcement learning")."""

import math
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import Route
from ..fast.hadamard import remember
from ..fast.routes import stands_for
from ..gtrxl import Gate
from ..parts.stack import AtOnce
from .shm import steps_since_reset

Traces: TypeAlias = tuple[Tensor, Tensor, Tensor]  # V, K and s of one layer


class AGaLiTeState(NamedTuple):
    """Traces of every layer and the steps since the reset; L = num_layers, n = ceil(r / 2). values [B, L, n, heads, d],
    keys [B, L, n, heads, eta d], norm [B, L, heads, eta d], step int64 [B]."""

    values: Tensor
    keys: Tensor
    norm: Tensor
    step: Tensor


class AGaLiTe(AtOnce):
    """AGaLiTe: layers of gated linear attention, whose state matrix is approximated by r pairs of oscillating traces.

        x^0 = relu(W_e input + b_e),  u = LayerNorm(x^{l-1})
        k = relu(W_k u) (x) relu(W_1 u),  q = relu(W_q u) (x) relu(W_2 u)        eta d values per head   (section 3.1)
        g = sigmoid(W_g u) (x) sigmoid(W_3 u),  b = sigmoid(W_b u),  v = W_v u
        V^i_t = (1 - b) * V^i_{t-1} + cos(w_i t) b * v                           i = 1 .. r               (section 3.2)
        K^i_t = (1 - g) * K^i_{t-1} + cos(w_i t) g * k
        s_t = (1 - g) * s_{t-1} + g * k
        a_t = sum_i V^i_t (K^i_t . q) / (2 r s_t . q + 1e-5)
        y = gate(x^{l-1}, relu(W_o a + b_o)),  x^l = gate(y, relu(MLP(LayerNorm(y))))   gates: see `GTrXL`

    d = head_size, (x) the outer product; all maps have biases. The output is x of the last layer. An unroll uses
    only the factors of g, k and q: K and s are matrices [eta, d] per head; decays and additions are outer products.

    The paper's frequencies are multiples of one frequency; the released code (github.com/subho406/agalite) spreads w
    evenly from -pi to pi. This core does the same, and shares the code's 1e-5, orthogonal initial weights of gain
    sqrt(2), zero biases, and clock t that starts at 2. Traces of w and -w are equal, so the state contains one of each
    pair. The code's clock continues through resets; here it restarts with every episode.
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
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.encoder = _orthogonal(nn.Linear(input_size, hidden_size))
        sizes = (hidden_size, num_heads, head_size, mlp_size, eta, r)
        self.layers = nn.ModuleList(Layer(*sizes) for _ in range(num_layers))

    def initial_state(self, batch_size: int) -> AGaLiTeState:
        layer = self.layers[0]
        assert isinstance(layer, Layer)
        heads, size, features = layer.num_heads, layer.head_size, layer.eta * layer.head_size
        shape, traces = (batch_size, len(self.layers)), layer.traces
        new = self.encoder.weight.new_zeros
        step = torch.zeros(batch_size, dtype=torch.int64, device=self.encoder.weight.device)
        return AGaLiTeState(
            new(*shape, traces, heads, size), new(*shape, traces, heads, features), new(*shape, heads, features), step
        )

    def fast_route(self, inputs: Tensor) -> Route | None:
        return self.unroll_at_once if stands_for(self, inputs) else None

    def _run(
        self, inputs: Tensor, state: AGaLiTeState, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, AGaLiTeState]:
        step = state.step if reset is None else steps_since_reset(reset, state.step)
        x, traces = F.relu(self.encoder(inputs)), list[Traces]()
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            before = state.values[:, index], state.keys[:, index], state.norm[:, index]
            x, after = layer(x, step, before) if reset is None else layer.unroll(x, step, before, reset, bptt_length)
            traces.append(after)
        values, keys, norm = (torch.stack(leaves, 1) for leaves in zip(*traces, strict=True))
        return x, AGaLiTeState(values, keys, norm, (step if reset is None else step[-1]) + 1)


class Layer(nn.Module):
    """One layer of `AGaLiTe`, whose docstring has the equations."""

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

    def forward(self, x: Tensor, step: Tensor, traces: Traces) -> tuple[Tensor, Traces]:
        """One step: x [B, hidden_size], step [B], V, K and s -> the next layer's x, the next V, K and s."""
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

    def unroll(
        self, x: Tensor, step: Tensor, traces: Traces, reset: Tensor, bptt_length: int | None
    ) -> tuple[Tensor, Traces]:
        """Run `forward` for x [T, B, hidden_size], step and reset [T, B]."""
        key, query, value, beta, gamma, wave = self._map(x, step)
        values, keys, norm = traces
        count = self.traces
        # s is a K whose wave is 1. Rows of a head's matrix: by trace, then by eta.
        waves = torch.cat([wave, torch.ones_like(wave[..., :1])], -1)[..., None, :, None]
        written = (waves * (gamma[1] * key[1]).unsqueeze(-2)).flatten(-2)
        decay, read = (part.repeat(1, 1, 1, count + 1) for part in (gamma[1], query[1]))
        start = torch.cat([keys, norm.unsqueeze(1)], 1).unflatten(3, (self.eta, -1)).transpose(1, 2).flatten(2, 3)
        write = (gamma[0] * key[0], written)
        of_keys, after = remember(
            "complement", (gamma[0], decay), write, read, reset, start, bptt_length, reads=count + 1
        )
        weight = (of_keys * query[0].unsqueeze(-2)).sum(-1)  # [T, B, heads, n + 1]
        after = after.unflatten(2, (count + 1, -1)).transpose(1, 2).flatten(3)
        weight, total = weight[..., :-1], weight[..., -1]
        write = (beta * value, wave.unsqueeze(2).expand_as(weight))
        attended, values = remember(
            "complement", (beta, None), write, self._counts(x) * weight, reset, values.transpose(1, 2), bptt_length
        )
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
