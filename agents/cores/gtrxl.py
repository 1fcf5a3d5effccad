"""Gated transformer over a window of past inputs (Parisotto et al. 2020, "Stabilizing transformers for RL")."""

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from .core import Axis, Core, Unrolled, map_state, readable, unroll_step_by_step

PIECE = 64  # Largest number of steps per pass: its attention matrix is PIECE x (memory_length + PIECE)


class GTrXLState(NamedTuple):
    past: Tensor  # [B, num_layers, memory_length, hidden_size]: the last inputs of every layer, newest last
    length: Tensor  # int64 [B]: number of valid inputs; the others are zero


class GTrXL(Core):
    """Gated Transformer-XL: layers that attend to their last M = memory_length inputs and the current input.

        e^0_t = W_e x_t + b_e
        E     = LayerNorm(e^{l-1}_{t-M} .. e^{l-1}_t)                                       as many as exist
        a_ts  = ((W_q E_t + u) . (W_k E_s) + (W_q E_t + v) . (W_r phi(t - s))) / sqrt(d)    per head of head_size d
        y_t   = gate_1(e^{l-1}_t, relu(W_o [sum_s softmax_s(a_ts) W_v E_s]))                (equation 9)
        e^l_t = gate_2(y_t, relu(W_2 relu(W_1 LayerNorm(y_t) + b_1) + b_2))                 (equation 10)

    with the gate of section 3.2 (GRU type), initially close to the identity on x, since b_g starts at 2:

        r = sigmoid(W_r y + U_r x),  z = sigmoid(W_z y + U_z x - b_g),  h = tanh(W_g y + U_g (r * x))
        gate(x, y) = (1 - z) * x + z * h

    phi(k) = [sin(k w_i) ; cos(k w_i)], w_i = 10000^(-2 i / H) (Dai et al. 2019, section 3.3). As there, keys and values
    of the past are recomputed with the current weights at every step. Choices that the paper leaves open, or that
    differ from it: gradients pass through the window within an unroll and are cut where every core's are; every layer
    has its own u and v, which start at zero; W_e has a bias, but W_q, W_k, W_v, W_r and W_o have none.
    """

    supervised_lr = 3e-4
    loops_over_time = False
    parts_of_state = (Axis("layer", "past", 1), Axis("place", "past", 2))  # the last place is the newest step

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        head_size: int = 32,
        mlp_size: int = 256,
        memory_length: int = 64,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.memory_length = memory_length
        self.encoder = nn.Linear(input_size, hidden_size)
        self.layers = nn.ModuleList(Layer(hidden_size, num_heads, head_size, mlp_size) for _ in range(num_layers))
        self.set_constants()

    def set_constants(self) -> None:
        size, device = self.output_size, self.encoder.weight.device
        rates = 10000 ** (-torch.arange(0, size, 2, dtype=torch.float64, device=device) / size)
        lags = torch.arange(self.memory_length + 1, dtype=torch.float64, device=device)
        angles = lags.unsqueeze(1) * rates
        self._sinusoids = torch.cat([angles.sin(), angles.cos()], 1)[:, :size]  # phi [M + 1, H]

    def initial_state(self, batch_size: int) -> GTrXLState:
        weight = self.encoder.weight
        past = weight.new_zeros(batch_size, len(self.layers), self.memory_length, self.output_size)
        return GTrXLState(past, torch.zeros(batch_size, dtype=torch.int64, device=weight.device))

    def attention(self, before: GTrXLState, after: GTrXLState) -> list[Tensor]:
        """Return every layer's attention weights [B, heads, M + 1] in the step between two states, that step last."""
        lag = torch.arange(self.memory_length, -1, -1, device=before.past.device)
        visible = (lag <= before.length.unsqueeze(1)).unsqueeze(1)  # [B, 1, M + 1]
        layers, weights = cast(list[Layer], self.layers), list[Tensor]()
        for layer, past, now in zip(layers, before.past.unbind(1), after.past.unbind(1), strict=True):
            x = now[:, -1:]
            keys = torch.cat([past, x], 1)
            weights.append(layer.attention(x, keys, visible, lag.unsqueeze(0), self._sinusoids.to(x))[0].squeeze(2))
        return weights

    def forward(self, inputs: Tensor, state: GTrXLState) -> tuple[Tensor, GTrXLState]:
        no_reset = torch.zeros(1, inputs.shape[0], dtype=torch.bool, device=inputs.device)
        outputs, state = self._attend(inputs.unsqueeze(0), no_reset, state)
        return outputs[0], state

    def unroll_at_once(self, inputs: Tensor, reset: Tensor, state: GTrXLState, bptt_length: int | None) -> Unrolled:
        first, outputs = state, list[Tensor]()
        period = bptt_length or len(inputs)
        starts = [t for t in range(len(inputs)) if t % period % PIECE == 0]
        for start, end in zip(starts, [*starts[1:], len(inputs)], strict=True):
            if start > 0 and start % period == 0:
                state = map_state(Tensor.detach, state)
            piece, state = self._attend(inputs[start:end], reset[start:end], state)
            outputs.append(piece)
        whole = torch.cat(outputs)
        if not readable(whole) or (bool(whole.isfinite().all()) and bool(state.past.isfinite().all())):
            return whole, state, None
        # 0 * nan is nan; a single step reads only values that it can attend to.
        return unroll_step_by_step(self, inputs, reset, first, bptt_length)

    def _attend(self, inputs: Tensor, reset: Tensor, state: GTrXLState) -> tuple[Tensor, GTrXLState]:
        """Compute all steps of a piece: inputs [T, B, D], reset bool [T, B] -> outputs [T, B, H] and the last state."""
        window, steps = self.memory_length, len(inputs)
        time = torch.arange(steps, device=inputs.device)
        key_time = torch.arange(-window, steps, device=inputs.device)  # negative for keys from the state
        lag = time.unsqueeze(1) - key_time
        began = torch.where(reset, time.unsqueeze(1), -1)
        began = (began.cummax(0).values if steps > 1 else began).t()  # [B, T]: the last reset, or -1
        oldest = torch.where(began >= 0, began, -state.length.unsqueeze(1))
        visible = (lag >= 0) & (lag <= window) & (key_time >= oldest.unsqueeze(2))  # [B, T, window + T]
        x, pasts = self.encoder(inputs).transpose(0, 1), list[Tensor]()
        retained = (key_time[steps:] >= oldest[:, -1:]).unsqueeze(2)
        for index, layer in enumerate(self.layers):
            keys = torch.cat([state.past[:, index], x], 1)
            pasts.append(torch.where(retained, keys[:, steps:], 0))
            x = layer(x, keys, visible, lag.clamp(0, window), self._sinusoids.to(x))
        length = (steps - oldest[:, -1]).clamp(max=window)
        return x.transpose(0, 1), GTrXLState(torch.stack(pasts, 1), length)


class Layer(nn.Module):
    """One layer of `GTrXL`: attention and a position-wise network, each behind a gate."""

    def __init__(self, hidden_size: int, num_heads: int, head_size: int, mlp_size: int) -> None:
        super().__init__()
        self.num_heads, self.scale, width = num_heads, 1 / math.sqrt(head_size), num_heads * head_size
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.query = nn.Linear(hidden_size, width, bias=False)
        self.key_value = nn.Linear(hidden_size, 2 * width, bias=False)
        self.position = nn.Linear(hidden_size, width, bias=False)
        self.u = nn.Parameter(torch.zeros(num_heads, head_size))
        self.v = nn.Parameter(torch.zeros(num_heads, head_size))
        self.out = nn.Linear(width, hidden_size, bias=False)
        self.mlp = nn.Sequential(nn.Linear(hidden_size, mlp_size), nn.ReLU(), nn.Linear(mlp_size, hidden_size))
        self.gate_1, self.gate_2 = Gate(hidden_size), Gate(hidden_size)

    def forward(self, x: Tensor, keys: Tensor, visible: Tensor, lag: Tensor, sinusoids: Tensor) -> Tensor:
        """x [B, T, H], keys [B, K, H], visible bool [B, T, K], lag int64 [T, K], sinusoids [M + 1, H] -> [B, T, H]."""
        weights, v = self.attention(x, keys, visible, lag, sinusoids)
        y = self.gate_1(x, self.out((weights @ v).transpose(1, 2).flatten(2)).relu())
        return self.gate_2(y, self.mlp(self.norm_2(y)).relu())

    def attention(
        self, x: Tensor, keys: Tensor, visible: Tensor, lag: Tensor, sinusoids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Arguments of `forward` -> softmax_s(a_ts) [B, heads, T, K] and the values W_v E_s [B, heads, K, d]."""
        heads = (self.num_heads, -1)
        k, v = self.key_value(self.norm_1(keys)).chunk(2, -1)
        q = self.query(self.norm_1(x)).unflatten(-1, heads).transpose(1, 2)  # [B, heads, T, d]
        k, v = (part.unflatten(-1, heads).transpose(1, 2) for part in (k, v))
        r = self.position(sinusoids).unflatten(-1, heads).permute(1, 2, 0)  # [heads, d, M + 1]
        by_content = (q + self.u.unsqueeze(1)) @ k.transpose(2, 3)
        by_lag = (q + self.v.unsqueeze(1)) @ r
        by_position = by_lag.gather(3, lag.expand(*by_lag.shape[:2], -1, -1))
        scores = (by_content + by_position) * self.scale
        return scores.masked_fill(~visible.unsqueeze(1), -torch.inf).softmax(-1), v


class Gate(nn.Module):
    """gate(x, y) of `GTrXL`; rows of the two matrices: r, z, g."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.from_y = nn.Linear(size, 3 * size, bias=False)
        self.from_x = nn.Linear(size, 2 * size, bias=False)
        self.from_gated_x = nn.Linear(size, size, bias=False)
        self.bias = nn.Parameter(torch.full((size,), 2.0))  # b_g

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x, y [..., H] -> [..., H]."""
        r_y, z_y, g_y = self.from_y(y).chunk(3, -1)
        r_x, z_x = self.from_x(x).chunk(2, -1)
        h = torch.tanh(g_y + self.from_gated_x(torch.sigmoid(r_y + r_x) * x))
        return torch.lerp(x, h, torch.sigmoid(z_y + z_x - self.bias))
