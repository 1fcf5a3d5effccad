"""DeltaNet and its gated, reflecting and multi-step forms: fast weights written by the delta rule."""

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
    """DeltaNet: residual layers of fast weights written by a delta rule, optionally gated or with several writes.

    One matrix S per head; d = head_size, n = num_writes; the layers are those of `parts/stack.py`.

        q = unit(silu(W_q u)),  k_i = unit(silu(W_k^i u)),  v_i = silu(W_v^i u),  beta_i = sigmoid(w_b^i u), i = 1 .. n
        S <- alpha S                                                         alpha = 1 without `gated`
        S <- S + beta_i k_i (v_i - S^T k_i)^T, for i = 1 .. n
        added = W_o [RMSNorm(S^T q) * silu(W_g u)]                           heads concatenated

        alpha = exp(-exp(a) softplus(w_a u + b_a))                           with `gated`

    unit(x) = x / |x|. With one write, this is DeltaNet (Yang et al. 2024, "Parallelizing linear transformers with the
    delta rule over sequence length", sections 2.2 and 3); with `gated`, Gated DeltaNet (Yang et al. 2025, equation 10);
    with `num_writes` above 1, DeltaProduct (Siems et al. 2025, section 3). `negative` doubles beta, so that the
    eigenvalue of I - beta k k^T along k lies in (-1, 1) instead of (0, 1) (Grazzi et al. 2025, section 4).

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
        num_writes: int = 1,
        gated: bool = False,
        negative: bool = False,
    ) -> None:
        sizes = (hidden_size, num_heads, head_size, num_writes, gated, negative)
        super().__init__(input_size, hidden_size, [DeltaMixer(*sizes) for _ in range(num_layers)])


class DeltaMixer(Mixer):
    """One layer of `DeltaNet`, whose docstring has the equations."""

    def __init__(
        self, hidden_size: int, num_heads: int, head_size: int, num_writes: int, gated: bool, negative: bool
    ) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.num_writes, self.negative = num_heads, head_size, num_writes, negative
        width = num_heads * head_size
        # Rows: q, gate, then k and v of every write.
        self.maps = nn.Linear(hidden_size, (2 + 2 * num_writes) * width, bias=False)
        self.rate = nn.Linear(hidden_size, num_writes * num_heads, bias=False)
        self.decay = Decay(hidden_size, num_heads) if gated else None
        self.scale = nn.Parameter(torch.ones(head_size))
        self.out = nn.Linear(width, hidden_size, bias=False)

    def initial_state(self, batch_size: int) -> DeltaNetState:
        shape = (batch_size, self.num_heads, self.head_size, self.head_size)
        return DeltaNetState(self.scale.new_zeros(shape))

    def forward(
        self, u: Tensor, state: DeltaNetState, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, DeltaNetState]:
        writes = self.num_writes
        maps = self.maps(u).unflatten(-1, (2 + 2 * writes, self.num_heads, self.head_size)).transpose(-3, -2)
        query, gate, keys, values = maps.split([1, 1, writes, writes], -2)
        query, keys, values = _unit(query.squeeze(-2)), _unit(keys), F.silu(values)  # [..., H, d], [..., H, n, d]
        rates = torch.sigmoid(self.rate(u)).unflatten(-1, (writes, self.num_heads)).transpose(-2, -1)  # [..., H, n]
        rates = 2 * rates if self.negative else rates
        log_decay = self.decay(u) if self.decay is not None else torch.zeros_like(rates[..., 0])
        if reset is None:
            weights = state.fast_weights * log_decay.exp()[..., None, None]
            for key, value, rate in zip(keys.unbind(-2), values.unbind(-2), rates.split(1, -1), strict=True):
                old = torch.einsum("bhkv,bhk->bhv", weights, key)
                weights = weights + key.unsqueeze(3) * (rate * (value - old)).unsqueeze(2)
            read = torch.einsum("bhkv,bhk->bhv", weights, query)
        else:
            steps = (query, keys, values, rates, log_decay)
            read, (weights,) = unroll_chunks(_delta_chunk, steps, reset, state, self.initial_state, bptt_length)
        read = F.rms_norm(read, read.shape[-1:], self.scale, 1e-5)
        return self.out((read * F.silu(gate.squeeze(-2))).flatten(-2)), DeltaNetState(weights)


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
    """Compute a chunk of L steps (`chunks.Chunk`): the reads [N, L, H, d] and the final fast weights. The n writes of a
    step follow each other like steps, with the decay before the first. With G_m the sum of log alpha up to write m and
    Gamma_mj = exp(G_m - G_j), S before write m is exp(G_m) S_0 + sum_{j < m} Gamma_mj k_j u_j^T, u_m = beta_m (v_m -
    S^T k_m)."""
    query, keys, values, rates, log_decay = steps
    (weights,) = start
    writes = keys.shape[3]
    rates = torch.where(used[..., None, None], rates, 0.0)
    log_decay = torch.where(used[..., None], log_decay, 0.0)
    # [N, H, M, ...], M = L n
    key, value, rate = (x.transpose(1, 2).flatten(2, 3) for x in (keys, values, rates.unsqueeze(4)))
    total = log_decay.transpose(1, 2).cumsum(2)  # [N, H, L]
    decay = total.repeat_interleave(writes, 2) if writes > 1 else total
    causal = torch.ones(decay.shape[2], decay.shape[2], dtype=torch.bool, device=decay.device).tril()
    between = torch.where(causal, decay.unsqueeze(3) - decay.unsqueeze(2), -torch.inf).exp()
    system = (rate * between * (key @ key.mT)).tril(-1)
    targets = rate * (value - decay.exp().unsqueeze(3) * (key @ weights))
    solvable = torch.promote_types(system.dtype, torch.float32)  # torch cannot solve systems in half precision
    written = torch.linalg.solve_triangular(system.to(solvable), targets.to(solvable), upper=False, unitriangular=True)
    written = written.to(system.dtype)
    query = query.transpose(1, 2)
    weight = between[:, :, writes - 1 :: writes] * (query @ key.mT)
    read = total.exp().unsqueeze(3) * (query @ weights) + weight @ written
    left = between[:, :, -1].unsqueeze(3) * key
    after = total[:, :, -1, None, None].exp() * weights + left.mT @ written
    return read.transpose(1, 2), (after,)
