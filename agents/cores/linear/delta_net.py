"""DeltaNet and Gated DeltaNet: fast weights written by the delta rule."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...sequence.chunks import unroll_chunks
from ..parts.stack import Mixer, Stack


class DeltaNetState(NamedTuple):
    """fast_weights [B, num_layers, num_heads, head_size, head_size]: axes key, value."""

    fast_weights: Tensor


class DeltaNet(Stack):
    """DeltaNet: residual layers of fast weights written by a delta rule, optionally gated.

    One matrix S per head; d = head_size; the layers are those of `parts/stack.py`.

        q = unit(silu(W_q u)),  k = unit(silu(W_k u)),  v = silu(W_v u),  beta = sigmoid(w_b u)
        S <- alpha S                                                         alpha = 1 without `gated`
        S <- S + beta k (v - S^T k)^T
        added = W_o [RMSNorm(S^T q) * silu(W_g u)]                           heads concatenated

        alpha = exp(-exp(a) softplus(w_a u + b_a))                           with `gated`

    unit(x) = x / |x|. This is DeltaNet (Yang et al. 2024, "Parallelizing linear transformers with the delta rule over
    sequence length", sections 2.2 and 3); with `gated`, Gated DeltaNet (Yang et al. 2025, equation 10).

    Choices left open by the papers: no short convolution before q, k and v (additional state, meant for text); no
    feed-forward layers; one layer; initially exp(a) uniform in 1..16 and softplus(b_a) log-uniform in 0.001..0.1, as in
    Mamba-2. An unroll works on chunks of steps (the papers' WY form): U = (I + tril(diag(beta) K K^T))^-1 diag(beta)
    (V - K S_0) are the written values, the solution of one triangular system per chunk and head.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        num_layers: int = 1,
        num_heads: int = 4,
        head_size: int = 32,
        gated: bool = False,
    ) -> None:
        sizes = (hidden_size, num_heads, head_size, gated)
        super().__init__(input_size, hidden_size, [DeltaMixer(*sizes) for _ in range(num_layers)])


class DeltaMixer(Mixer):
    """One layer of `DeltaNet`, whose docstring has the equations."""

    def __init__(self, hidden_size: int, num_heads: int, head_size: int, gated: bool) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, head_size
        width = num_heads * head_size
        self.maps = nn.Linear(hidden_size, 4 * width, bias=False)  # rows: q, gate, k, v
        self.rate = nn.Linear(hidden_size, num_heads, bias=False)
        self.decay = Decay(hidden_size, num_heads) if gated else None
        self.scale = nn.Parameter(torch.ones(head_size))
        self.out = nn.Linear(width, hidden_size, bias=False)

    def initial_state(self, batch_size: int) -> DeltaNetState:
        shape = (batch_size, self.num_heads, self.head_size, self.head_size)
        return DeltaNetState(self.scale.new_zeros(shape))

    def forward(
        self, u: Tensor, state: DeltaNetState, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, DeltaNetState]:
        query, gate, key, value = self.maps(u).unflatten(-1, (4, self.num_heads, self.head_size)).unbind(-3)
        query, key, value = _unit(query), _unit(key), F.silu(value)  # [..., H, d]
        rate = torch.sigmoid(self.rate(u))
        log_decay = self.decay(u) if self.decay is not None else torch.zeros_like(rate)
        if reset is None:
            weights = state.fast_weights * log_decay.exp()[..., None, None]
            old = torch.einsum("bhkv,bhk->bhv", weights, key)
            weights = weights + key.unsqueeze(3) * (rate.unsqueeze(2) * (value - old)).unsqueeze(2)
            read = torch.einsum("bhkv,bhk->bhv", weights, query)
        else:
            steps = (query, key, value, rate, log_decay)
            read, (weights,) = unroll_chunks(_delta_chunk, steps, reset, state, self.initial_state, bptt_length)
        read = F.rms_norm(read, read.shape[-1:], self.scale, 1e-5)
        return self.out((read * F.silu(gate)).flatten(-2)), DeltaNetState(weights)


class Decay(nn.Module):
    """log alpha [..., H] = -exp(a) softplus(w u + b), one value per head; a and b as in Mamba-2."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.empty(num_heads).uniform_(1, 16).log())
        self.step = nn.Linear(hidden_size, num_heads)
        with torch.no_grad():
            first = torch.exp(torch.empty(num_heads).uniform_(-6.9, -2.3))
            self.step.bias.copy_(first.expm1().log())

    def forward(self, u: Tensor) -> Tensor:
        """u [..., hidden_size] -> log alpha [..., H], below 0."""
        return -self.rate.exp() * F.softplus(self.step(u))


def _unit(x: Tensor) -> Tensor:
    return F.normalize(F.silu(x), dim=-1, eps=1e-6)


def _delta_chunk(steps: tuple[Tensor, ...], used: Tensor, start: Any) -> tuple[Tensor, tuple[Tensor]]:
    """Compute a chunk of L steps (`chunks.Chunk`): the reads [N, L, H, d] and the final fast weights. With G_t the sum
    of log alpha up to step t and Gamma_tj = exp(G_t - G_j), S before the write of step t is
    exp(G_t) S_0 + sum_{j < t} Gamma_tj k_j u_j^T, u_t = beta_t (v_t - S^T k_t)."""
    query, key, value = (x.transpose(1, 2) for x in steps[:3])  # [N, H, L, d]
    rate, log_decay = (torch.where(used[..., None], x, 0.0).transpose(1, 2) for x in steps[3:])
    rate = rate.unsqueeze(3)
    (weights,) = start
    total = log_decay.cumsum(2)  # [N, H, L]
    causal = torch.ones(total.shape[2], total.shape[2], dtype=torch.bool, device=total.device).tril()
    between = torch.where(causal, total.unsqueeze(3) - total.unsqueeze(2), -torch.inf).exp()
    system = (rate * between * (key @ key.mT)).tril(-1)
    targets = rate * (value - total.exp().unsqueeze(3) * (key @ weights))
    solvable = torch.promote_types(system.dtype, torch.float32)  # torch cannot solve systems in half precision
    written = torch.linalg.solve_triangular(system.to(solvable), targets.to(solvable), upper=False, unitriangular=True)
    written = written.to(system.dtype)
    weight = between * (query @ key.mT)
    read = total.exp().unsqueeze(3) * (query @ weights) + weight @ written
    left = between[:, :, -1].unsqueeze(3) * key
    after = total[:, :, -1, None, None].exp() * weights + left.mT @ written
    return read.transpose(1, 2), (after,)
