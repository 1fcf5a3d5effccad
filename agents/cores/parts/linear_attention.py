"""Linear attention with a decay per head: one step, and parts of chunks of steps.

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
    return torch.nn.functional.rms_norm(x, x.shape[-1:], scale, eps)


def decays(total: Tensor) -> Tensor:
    """exp(G_t - G_j) where j <= t, else 0: [..., L] -> [..., L, L]; G are the cumulative sums of log decays."""
    causal = torch.ones(total.shape[-1], total.shape[-1], dtype=torch.bool, device=total.device).tril()
    difference = total.unsqueeze(-1) - total.unsqueeze(-2)
    return torch.where(causal, difference, -torch.inf).exp()


def attend_step(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """One step: q, k [B, H, K], v [B, H, V], log a [B, H], S [B, H, K, V] -> y [B, H, V], the next S."""
    after = log_decay.exp()[..., None, None] * start + key.unsqueeze(3) * value.unsqueeze(2)
    return torch.einsum("bhkv,bhk->bhv", after, query), after
