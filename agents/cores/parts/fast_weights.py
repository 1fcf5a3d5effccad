"""The memory of FWM: a third-order tensor written by a delta rule and read in several hops (Schlag et al. 2021).

Two forms of the same equations: `write` and `read` compute one step, `Block` a block of steps, without forming the
tensor in between. With F_0 the memory at the start of the block and u_j the value that step j adds at its keys,

    F_t = w_t0 F_0 + sum_{j<=t} w_tj k1_j (x) k2_j (x) u_j,    w_tj = product of the rescalings s_j .. s_t

so v_old and every hop are one matrix multiplication of all the block's queries and F_0, plus small products of keys,
and a block of L steps reads d^3 values as often as a single step does.

Shapes: N rows (a batch, or blocks of it), L steps, d memory size, R hops. The memory is [N, d, d, d]: axes k1, k2, v.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class Write(NamedTuple):
    """Arguments of a step's write, leaves [..., d]; rate [..., 1] is beta times the write scale."""

    key1: Tensor
    key2: Tensor
    value: Tensor
    rate: Tensor


class Read(NamedTuple):
    """Arguments of a step's read: the first query n^0 [..., d] and the keys e^1 .. e^R of its hops [..., R, d]."""

    query: Tensor
    hops: Tensor


def write(memory: Tensor, new: Write) -> Tensor:
    """Return the memory [N, d, d, d] after one write; leaves of `new` are [N, d].

    v_old = F (k1 (x) k2);   F' = F + rate k1 (x) k2 (x) (v - v_old)      (equation 3)
    F_t = F' / max(1, |F'|_2), the norm over the whole tensor              (equation 4)
    """
    keys, flat = _pairs(new.key1, new.key2).unsqueeze(1), memory.flatten(1, 2)
    old = torch.bmm(keys, flat)
    added = new.rate.unsqueeze(1) * (new.value.unsqueeze(1) - old)
    flat = torch.addcmul(flat, keys.transpose(1, 2), added)
    norm = torch.linalg.vector_norm(flat, dim=(1, 2), keepdim=True)
    return (flat * norm.clamp(min=1).reciprocal()).view_as(memory)


def read(memory: Tensor, queries: Read) -> Tensor:
    """Return n^R [N, d], with n^i = LN(F (n^{i-1} (x) e^i)), LN without scale and offset (equation 7)."""
    result, flat = queries.query, memory.flatten(1, 2)
    for hop in queries.hops.unbind(-2):
        result = _normal(torch.bmm(_pairs(result, hop).unsqueeze(1), flat).squeeze(1))
    return result


class Block:
    """L steps of writing and reading from memory [N, d, d, d]; leaves of `new` and of queries are [N, L, ...]. Where
    `fresh` (bool [N, L]) is set, the memory is cleared before the step's write; shapes do not depend on `fresh`.

    Which writes a step reads is selected, since a weight of 0 times nan would be nan. Reads of non-finite values are
    nan; all other reads are computed without these values.
    """

    def __init__(self, memory: Tensor, new: Write, fresh: Tensor) -> None:
        self.new, start = new, memory.flatten(1, 2)
        overlap = _gram(new.key1, new.key1, new.key2, new.key2)
        base, square = torch.bmm(_pairs(new.key1, new.key2), start), start.square().sum((1, 2))
        added, scales = _Additions.apply(base, square, overlap, new.value, new.rate, fresh)  # pyright: ignore
        logs = scales.log()
        logs = torch.where(logs.isfinite(), logs, 0.0)  # the sums below span all episodes
        total = logs.cumsum(1)
        # log w_tj = log s_j + .. + log s_t: the sum up to t minus the sum before j; where j > t, exp may overflow.
        self.weight = (total.unsqueeze(2) - (total - logs).unsqueeze(1)).tril().exp().tril()
        self.start_weight = total.exp().unsqueeze(2)
        episode = fresh.cumsum(1)
        self.of_start = (episode == 0).unsqueeze(2)  # [N, L, 1]: step t reads the start memory
        self.same = (episode.unsqueeze(2) == episode.unsqueeze(1)).tril()  # [N, L, L]: step t reads step j's write
        broken, broken_start = ~added.isfinite().all(2), ~start.isfinite().all(2).all(1)
        self.invalid = (self.same & broken.unsqueeze(1)).any(2, True) | (self.of_start & broken_start[:, None, None])
        self.added = torch.where(broken.unsqueeze(2), 0.0, added)
        self.start = torch.where(broken_start[:, None, None], 0.0, start)

    def read(self, queries: Read) -> Tensor:
        """Return n^R [N, L, d] of every step; see the function `read`."""
        result = queries.query
        for hop in queries.hops.unbind(-2):
            weight = torch.where(self.same, self.weight * _gram(result, self.new.key1, hop, self.new.key2), 0.0)
            at_start = self.start_weight * torch.bmm(_pairs(result, hop), self.start)
            result = torch.where(self.of_start, at_start, 0.0) + torch.bmm(weight, self.added)
            result = _normal(torch.where(self.invalid, torch.nan, result))
        return result

    def end(self) -> Tensor:
        """Return the memory [N, d, d, d] after the last step."""
        current, size = self.same[:, -1, :, None], self.new.value.shape[-1]
        keys = torch.where(current, _pairs(self.new.key1, self.new.key2), 0.0).transpose(1, 2)
        added = torch.where(current, self.weight[:, -1, :, None] * self.added, 0.0)
        carried = torch.where(self.of_start[:, -1:], self.start * self.start_weight[:, -1:], 0.0)
        memory = torch.where(self.invalid[:, -1:], torch.nan, torch.baddbmm(carried, keys, added))
        return memory.unflatten(1, (size, size))


class _Additions(torch.autograd.Function):
    """Additions u [N, L, d] and factors s [N, L] of the steps of a block.

    Instead of F, the loop updates F's products with the block's keys, Q_i = F (k1_i (x) k2_i), which are initially
    `base` [N, L, d], and q = |F|^2 [N]. With G_ij = (k1_i . k1_j)(k2_i . k2_j), `overlap` [N, L, L]:

        u = rate_t (v_t - Q_t)
        q' = q + 2 Q_t . u + G_tt |u|^2                       |F + k1_t (x) k2_t (x) u|^2
        s = max(1, q')^-1/2,   Q_i <- s (Q_i + G_it u) for i > t,   q <- min(1, q')

    Before a step where `fresh` [N, L] is set, all Q_i and q become 0. The gradient is explicit, since autograd would
    record about thirty small operations per step.
    """

    @staticmethod
    def forward(
        ctx: Any, base: Tensor, square: Tensor, overlap: Tensor, value: Tensor, rate: Tensor, fresh: Tensor
    ) -> tuple[Tensor, Tensor]:
        added, old, scales = torch.empty_like(base), torch.empty_like(base), torch.empty_like(base[..., 0])
        squares = torch.empty_like(scales)
        later: list[Tensor] = []
        at_keys = base
        for t in range(base.shape[1]):
            at_keys = torch.where(fresh[:, t, None, None], 0.0, at_keys)
            square = torch.where(fresh[:, t], 0.0, square)
            now, at_keys = at_keys[:, 0], at_keys[:, 1:]
            u = torch.mul(rate[:, t], value[:, t] - now)
            square = square + (u * (2 * now + overlap[:, t, t, None] * u)).sum(-1)
            scale = square.clamp(min=1).rsqrt()
            at_keys = torch.baddbmm(at_keys, overlap[:, t + 1 :, t, None], u.unsqueeze(1))
            later.append(at_keys)
            at_keys = at_keys * scale[:, None, None]
            old[:, t], added[:, t], scales[:, t], squares[:, t] = now, u, scale, square
            square = square.clamp(max=1)
        ctx.fresh = fresh
        ctx.save_for_backward(overlap, value, rate, added, old, scales, squares, *later)
        return added, scales

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_added: Tensor, grad_scales: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        overlap, value, rate, added, old, scales, squares, *later = ctx.saved_tensors
        grad_overlap, grad_keys = torch.zeros_like(overlap), torch.empty_like(value)
        grad_value, grad_rate = torch.empty_like(value), torch.empty_like(rate)
        grad_square = torch.zeros_like(squares[:, 0])
        for t in reversed(range(added.shape[1])):
            u, now, scale, overlap_t = added[:, t], old[:, t], scales[:, t], overlap[:, t, t, None]
            grad_later = grad_keys[:, t + 1 :]  # of the scaled Q_i, i > t; after `mul_`, of the unscaled Q_i
            grad_scale = grad_scales[:, t] + (grad_later * later[t]).sum((1, 2))
            grad_later.mul_(scale[:, None, None])
            # Where q' > 1, q' acts only through s, ds/dq' = -s^3 / 2; elsewhere, it only becomes the next q.
            grad_square = torch.where(squares[:, t] > 1, -0.5 * scale**3 * grad_scale, grad_square)
            doubled = 2 * grad_square.unsqueeze(1)
            through_keys = torch.bmm(overlap[:, None, t + 1 :, t], grad_later).squeeze(1)
            grad_u = grad_added[:, t] + through_keys + doubled * (now + overlap_t * u)
            grad_overlap[:, t + 1 :, t] = torch.bmm(grad_later, u.unsqueeze(2)).squeeze(2)
            grad_overlap[:, t, t] = grad_square * u.square().sum(-1)
            grad_rate[:, t] = (grad_u * (value[:, t] - now)).sum(-1, keepdim=True)
            grad_value[:, t] = rate[:, t] * grad_u
            grad_keys[:, t] = doubled * u - grad_value[:, t]
            grad_keys[:, t:] = torch.where(ctx.fresh[:, t, None, None], 0.0, grad_keys[:, t:])
            grad_square = torch.where(ctx.fresh[:, t], 0.0, grad_square)
        return grad_keys, grad_square, grad_overlap, grad_value, grad_rate, None


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    """vec(first (x) second): [..., d], [..., d] -> [..., d * d]."""
    return (first.unsqueeze(-1) * second.unsqueeze(-2)).flatten(-2)


def _gram(left1: Tensor, right1: Tensor, left2: Tensor, right2: Tensor) -> Tensor:
    """`<vec(left1 (x) left2), vec(right1 (x) right2)>` between all steps: [N, L, L]."""
    return torch.bmm(left1, right1.transpose(1, 2)) * torch.bmm(left2, right2.transpose(1, 2))


def _normal(value: Tensor) -> Tensor:
    return F.layer_norm(value, value.shape[-1:])
