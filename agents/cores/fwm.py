"""Fast Weight Memory (Schlag et al. 2021, "Learning associative inference using fast weight memory").

Shapes: N rows (a batch, or blocks of it), L steps, d memory size, R hops. The memory is [N, d, d, d]: axes k1, k2, v.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..kernels import Affine, Linear
from .core import Core, Route, Step, Unrolled, under_torch_func
from .fast.fwm import write_and_read
from .fast.routes import arrays, stands_for
from .lstm import LSTM, LSTMState

BLOCK = 32  # Largest number of steps that an unroll processes at once


class FWMState(NamedTuple):
    controller: LSTMState
    memory: Tensor  # [B, d, d, d]: axes first key, second key, value


class Write(NamedTuple):
    key1: Tensor  # [..., d]
    key2: Tensor
    value: Tensor
    rate: Tensor  # beta times the write scale [..., 1]


class Read(NamedTuple):
    query: Tensor  # n^0 [..., d]
    hops: Tensor  # e^1 .. e^R [..., R, d]


class FWM(Core):
    """Fast weight memory: an LSTM and a tensor of fast weights F [d, d, d]; d = memory_size, R = num_reads.

        h_t = LSTM(x_t, h_{t-1})
        [k1, k2, v] = tanh(W_write h + b),  beta = sigmoid(w_beta h + b + beta_bias)        (equations 1, 2)
        v_old = F_{t-1} (k1 (x) k2)
        F'_t = F_{t-1} + write_scale beta k1 (x) k2 (x) (v - v_old)                         (equation 3)
        F_t = F'_t / max(1, |F'_t|_2), norm over the whole tensor, with gradient            (equation 4)
        n^0 = tanh(W_n h + b),  e^i = tanh(W_e^i h + b), i = 1..R                           (equations 5, 6)
        n^i = LN(F_t (n^{i-1} (x) e^i)), LN without scale and offset                        (equation 7)
        output = h + W_o n^R + b                                                            (equation 8, section 3.1)

    The defaults are the paper's; the released RL code has `write_scale` 1/d, `beta_bias` 1 and no tanh in equations 5
    and 6. As in that code, linear layers have biases, and W_write and the weights of n^0 and e^i are sampled from
    U(+-sqrt(6 / (hidden_size + d))). The initial state is zero. `memory_span`: see LSTM.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        memory_size: int = 16,
        num_reads: int = 3,
        write_scale: float = 1.0,
        beta_bias: float = 0.0,
        memory_span: int = 0,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.memory_size, self.num_reads = memory_size, num_reads
        self.write_scale, self.beta_bias = write_scale, beta_bias
        self.controller = LSTM(input_size, hidden_size, memory_span)
        self.write = Linear(hidden_size, 3 * memory_size + 1)
        self.read = Linear(hidden_size, (1 + num_reads) * memory_size)
        self.out = Linear(memory_size, hidden_size)
        bound = (6 / (hidden_size + memory_size)) ** 0.5
        nn.init.uniform_(self.write.weight, -bound, bound)
        nn.init.uniform_(self.read.weight, -bound, bound)

    def initial_state(self, batch_size: int) -> FWMState:
        shape = (batch_size, *[self.memory_size] * 3)
        return FWMState(self.controller.initial_state(batch_size), self.out.weight.new_zeros(shape))

    def forward(self, inputs: Tensor, state: FWMState) -> tuple[Tensor, FWMState]:
        hidden, controller = self.controller(inputs, state.controller)
        memory = write(state.memory, self.compute_write(hidden))
        return hidden + self.out(read(memory, self.compute_read(hidden))), FWMState(controller, memory)

    def fast_route(self, inputs: Tensor) -> Route | None:
        # vmap cannot pass through the gradient of a block, which is implemented explicitly.
        return None if under_torch_func() else self.unroll_pieces

    def fast_step(self, batch_size: int) -> Step | None:
        controller = self.controller.fast_step(batch_size)
        if controller is None or not stands_for(self, self.out.weight):
            return None
        size, count = self.memory_size, self.read.out_features
        write, read, out = (Affine(layer.weight, layer.bias) for layer in (self.write, self.read, self.out))
        (rates,) = arrays(self.out.weight.new_tensor([self.write_scale, self.beta_bias]))

        def step(inputs: Tensor, reset: Tensor, state: FWMState) -> tuple[Tensor, FWMState]:
            hidden, after = controller(inputs, reset, state.controller)
            h, memory, result = hidden.numpy(), hidden.new_empty(state.memory.shape), hidden.new_empty(batch_size, size)
            before, new = arrays(state.memory.flatten(2), memory.flatten(2))
            write_and_read(before, reset.numpy(), write(h), rates, read(h), count, new, result.numpy())
            output = torch.from_numpy(out(result.numpy()))
            return hidden + output, FWMState(after, memory)

        return step

    def unroll_pieces(self, inputs: Tensor, reset: Tensor, state: FWMState, bptt_length: int | None) -> Unrolled:
        """Run `unroll` in blocks of steps, the same for every batch."""
        hidden, controller, _ = self.controller.unroll(inputs, reset, state.controller, bptt_length)
        memory, reads = state.memory, list[Tensor]()
        for piece in range(0, len(reset), bptt_length or len(reset)):
            memory = memory.detach() if piece else memory
            end = min(piece + (bptt_length or len(reset)), len(reset))
            length = -(-(end - piece) // -(-(end - piece) // BLOCK))
            for start in range(piece, end, length):
                part = slice(start, min(start + length, end))
                steps, fresh = hidden[part].transpose(0, 1), reset[part].t()
                block = Block(memory, self.compute_write(steps), fresh)
                reads.append(block.read(self.compute_read(steps)).transpose(0, 1))
                memory = block.end()
        return hidden + self.out(torch.cat(reads)), FWMState(controller, memory), None

    def compute_write(self, hidden: Tensor) -> Write:
        keys, rate = self.write(hidden).split([3 * self.memory_size, 1], dim=-1)
        key1, key2, value = keys.tanh().chunk(3, dim=-1)
        return Write(key1, key2, value, self.write_scale * torch.sigmoid(rate + self.beta_bias))

    def compute_read(self, hidden: Tensor) -> Read:
        query, hops = self.read(hidden).tanh().split([self.memory_size, self.num_reads * self.memory_size], dim=-1)
        return Read(query, hops.unflatten(-1, (self.num_reads, self.memory_size)))


def write(memory: Tensor, new: Write) -> Tensor:
    """Return the memory [N, d, d, d] after one write (equations 3 and 4); leaves of `new` are [N, d]."""
    keys, flat = _pairs(new.key1, new.key2).unsqueeze(1), memory.flatten(1, 2)
    old = torch.bmm(keys, flat)
    added = new.rate.unsqueeze(1) * (new.value.unsqueeze(1) - old)
    flat = torch.addcmul(flat, keys.transpose(1, 2), added)
    norm = torch.linalg.vector_norm(flat, dim=(1, 2), keepdim=True)
    return (flat * norm.clamp(min=1).reciprocal()).view_as(memory)


def read(memory: Tensor, queries: Read) -> Tensor:
    """Return n^R [N, d] (equation 7)."""
    result, flat = queries.query, memory.flatten(1, 2)
    for hop in queries.hops.unbind(-2):
        result = _normal(torch.bmm(_pairs(result, hop).unsqueeze(1), flat).squeeze(1))
    return result


class Block:
    """L steps of writing and reading, without forming the tensor in between; leaves of `new` and queries are [N, L,
    ...]. Where `fresh` (bool [N, L]) is set, the memory is cleared before the step's write. With u_j the value that
    step j adds,

        F_t = w_t0 F_0 + sum_{j<=t} w_tj k1_j (x) k2_j (x) u_j,    w_tj = product of the rescalings s_j .. s_t

    Which writes a step reads is selected, since 0 * nan is nan."""

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
    """Additions u [N, L, d] and factors s [N, L] of a block. Instead of F, the loop updates F's products with the
    block's keys, Q_i = F (k1_i (x) k2_i), initially `base` [N, L, d], and q = |F|^2 [N], initially `square`. With
    G_ij = (k1_i . k1_j)(k2_i . k2_j), `overlap` [N, L, L]:

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
        squares, at_keys, later = torch.empty_like(scales), base, list[Tensor]()
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
