"""Linear attention with a decay per head: one step, and a chunk of steps as matrix multiplications.

    S_t = a_t S_{t-1} + k_t v_t^T,   y_t = S_t^T q_t

Shapes: N chunks, L steps, H heads, K key size, V value size.
"""

import torch
from torch import Tensor


def heads_first(x: Tensor) -> Tensor:
    """[N, L, H, ...] -> [N, H, L, ...]."""
    return x.transpose(1, 2)


def rms_norm(x: Tensor, scale: Tensor, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * scale over the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * scale


def decays(total: Tensor) -> Tensor:
    """exp(G_t - G_j) where j <= t, else 0: [..., L] -> [..., L, L], G the sums of the logarithms of the decays."""
    causal = torch.ones(total.shape[-1], total.shape[-1], dtype=torch.bool, device=total.device).tril()
    difference = total.unsqueeze(-1) - total.unsqueeze(-2)
    return torch.where(causal, difference, -torch.inf).exp()


def attend_step(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """One step: q, k [B, H, K], v [B, H, V], log a [B, H], S [B, H, K, V] -> y [B, H, V], the next S."""
    after = log_decay.exp()[..., None, None] * start + key.unsqueeze(3) * value.unsqueeze(2)
    return torch.einsum("bhkv,bhk->bhv", after, query), after


def attend_chunk(
    steps: tuple[Tensor, ...], used: Tensor, start: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A chunk (`chunks.Chunk`) of steps q, k [N, L, H, K], v [N, L, H, V], log a [N, L, H], from S [N, H, K, V]."""
    query, key, value, log_decay = steps
    (before,) = start
    log_decay = torch.where(used[..., None], log_decay, 0.0)
    value = torch.where(used[..., None, None], value, 0.0)
    query, key, value = heads_first(query), heads_first(key), heads_first(value)
    total = heads_first(log_decay).cumsum(2)
    between = decays(total)
    read = total.exp().unsqueeze(3) * (query @ before) + (between * (query @ key.mT)) @ value
    left = between[:, :, -1].unsqueeze(3) * key
    after = total[:, :, -1, None, None].exp() * before + left.mT @ value
    return heads_first(read), (after,)
