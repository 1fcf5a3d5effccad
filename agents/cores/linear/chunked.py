"""Matrix memories whose unroll works on chunks of steps: DeltaNet with its gated and multi-step forms, and mLSTM.

A core computes a chunk of L steps from the state before it. The unroll is split into blocks of consecutive steps; every
reset begins a block, so steps before it cannot affect later blocks, not even as 0 * nan. Blocks of equal depth run in
parallel. Shapes: T steps, B environments, H heads, N chunks, L steps per chunk.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .stack import Mixer, Stack, Steps

States: TypeAlias = tuple[Tensor, ...]
Chunk: TypeAlias = Callable[[tuple[Tensor, ...], Tensor, States], tuple[Tensor, States]]
"""chunk(steps, each [N, H, L, ...]; used, bool [N, 1, L]; states before, each [N, ...]) -> outputs [N, H, L, ...],
states after. An unused step must not change the state; its output is not read. Unused steps come last."""

LENGTH = 32  # Largest number of steps per chunk


class Blocks(NamedTuple):
    """N blocks, ordered by depth: the number of earlier blocks of the same sequence (since its reset or t = 0)."""

    steps: Tensor  # int64 [L, N]: flat index t * B + b of each step of each block
    used: Tensor  # bool [L, N]: False where a short block only repeats its first step
    slot: Tensor  # int64 [T * B]: index of each step in its block
    block: Tensor  # int64 [T * B]: the block of each step; environment b's first block is block b.
    depths: list[slice]  # The blocks of depth 0, 1, 2, ...


def cut_into_blocks(reset: Tensor, length: int, period: int | None = None) -> Blocks:
    """Split T steps of B environments into blocks of at most `length` steps that begin where `reset` [T, B] is set.
    With a period, blocks also begin at multiples of the period (counted from t = 0), continuing their sequence."""
    batch = reset.shape[1]
    time = torch.arange(reset.shape[0], device=reset.device).unsqueeze(1)
    fresh = reset | (time == 0)
    cut = fresh if period is None else fresh | (time % period == 0)
    slot = (time - torch.where(cut, time, 0).cummax(0).values) % length
    count = (slot == 0).cumsum(0)
    depth = (count - torch.where(fresh, count, 0).cummax(0).values).flatten()
    slot = slot.flatten()

    begin = (slot == 0).nonzero().squeeze(1)
    ends = depth[begin].bincount().cumsum(0).tolist()
    begin = begin[depth[begin].argsort(stable=True)]
    every = torch.arange(len(slot), device=reset.device)
    block = torch.empty_like(every).index_copy_(0, begin, every[: len(begin)])[every - slot * batch]
    steps = begin + torch.arange(length, device=reset.device).unsqueeze(1) * batch
    inside = steps < len(every)
    used = inside & (block[torch.where(inside, steps, begin)] == every[: len(begin)])
    return Blocks(torch.where(used, steps, begin), used, slot, block, list(map(slice, [0, *ends], ends)))


def unroll_chunks(
    chunk: Chunk,
    steps: Sequence[Tensor],
    reset: Tensor,
    start: States,
    initial: Callable[[int], States],
    bptt_length: int | None = None,
    length: int = LENGTH,
) -> tuple[Tensor, States]:
    """Return the outputs of all T steps [T, B, H, ...] and the states after the last step, from the inputs of each step
    [T, B, H, ...] and the states `start` [B, ...] before step 0; initial(n) returns n initial states [n, ...]. `reset`
    and `bptt_length` are those of `Core.unroll`; a chunk has at most `length` steps."""
    rows, heads = reset.shape[1], torch.arange(steps[0].shape[2], device=reset.device).unsqueeze(1)
    blocks = cut_into_blocks(reset, length if bptt_length is None else min(length, bptt_length), bptt_length)
    longest = [int(blocks.used[:, group].sum(0).max()) for group in blocks.depths]
    cuts = list(zip(longest, blocks.depths, strict=True))
    used = [blocks.used[:count, group].T.unsqueeze(1) for count, group in cuts]  # [N, 1, L]
    indices = [blocks.steps[:count, group].T.unsqueeze(1) * len(heads) + heads for count, group in cuts]  # [N, H, L]
    # One gather for all depths, as the gradient of each is as large as its input. It also moves heads before steps.
    order, sizes = torch.cat([index.flatten() for index in indices]), [index.numel() for index in indices]
    parts = zip(*(tensor.flatten(0, 2).index_select(0, order).split(sizes) for tensor in steps), strict=True)
    ends: list[States] = []
    outputs: list[Tensor] = []
    for depth, (group, index, part) in enumerate(zip(blocks.depths, indices, parts, strict=True)):
        if depth:
            previous = blocks.block[blocks.steps[0, group] - rows] - blocks.depths[depth - 1].start
            before = tuple(leaf.index_select(0, previous) for leaf in ends[-1])
            if bptt_length is not None:
                cut = (blocks.steps[0, group] // rows) % bptt_length == 0
                before = tuple(torch.where(_like(cut, leaf), leaf.detach(), leaf) for leaf in before)
        else:  # the first B chunks begin at t = 0, the others at a reset
            fresh = initial(group.stop)
            before = tuple(
                torch.cat([torch.where(_like(reset[0], initial_leaf), new[:rows], initial_leaf), new[rows:]])
                for new, initial_leaf in zip(fresh, start, strict=True)
            )
        result, end = chunk(tuple(tensor.unflatten(0, index.shape) for tensor in part), used[depth], before)
        ends.append(end)
        outputs.append(result.flatten(0, 2))
    kept = torch.cat([flags.expand_as(index).flatten() for flags, index in zip(used, indices, strict=True)])
    places = order.new_empty(reset.numel() * len(heads))
    places[order[kept]] = kept.nonzero().squeeze(1)
    whole = torch.cat(outputs).index_select(0, places).unflatten(0, (*reset.shape, len(heads)))
    last = blocks.block[-rows:]
    return whole, tuple(torch.cat(leaves).index_select(0, last) for leaves in zip(*ends, strict=True))


def _like(flag: Tensor, leaf: Tensor) -> Tensor:
    """Reshape bool [N] to broadcast with a leaf [N, ...]."""
    return flag.reshape(-1, *[1] * (leaf.dim() - 1))


class DeltaNetState(NamedTuple):
    fast_weights: Tensor  # [B, num_layers, num_heads, head_size, head_size]: axes key, value


class DeltaNet(Stack):
    """DeltaNet: residual layers (see `Stack`), each with a matrix S per head; d = head_size, n = num_writes.

        q = unit(silu(W_q u)),  k_i = unit(silu(W_k^i u)),  v_i = silu(W_v^i u),  beta_i = sigmoid(w_b^i u), i = 1 .. n
        S <- alpha S                                                         alpha = 1 without `gated`
        S <- S + beta_i k_i (v_i - S^T k_i)^T, for i = 1 .. n
        added = W_o [RMSNorm(S^T q) * silu(W_g u)]                           heads concatenated

        alpha = exp(-exp(a) softplus(w_a u + b_a))                           with `gated`

    unit(x) = x / |x|. With one write, this is DeltaNet (Yang et al. 2024, "Parallelizing linear transformers with the
    delta rule over sequence length", sections 2.2 and 3); with `gated`, Gated DeltaNet (Yang et al. 2025, equation 10);
    with `num_writes` above 1, DeltaProduct (Siems et al. 2025, section 3). `negative` doubles beta, so that the
    eigenvalue of I - beta k k^T along k lies in (-1, 1) instead of (0, 1) (Grazzi et al. 2025, section 4).

    Choices left open by the papers: no short convolution before q, k and v; no feed-forward layers; one layer;
    initially exp(a) uniform in 1..16 and softplus(b_a) log-uniform in 0.001..0.1, as in Mamba-2. An unroll works on
    chunks of steps (the papers' WY form), with one triangular system per chunk and head.
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
        options = (num_heads, head_size, num_writes, gated, negative)
        super().__init__(input_size, hidden_size, num_layers, DeltaMixer, *options)


class DeltaMixer(Mixer):
    def __init__(
        self, hidden_size: int, num_heads: int, head_size: int, num_writes: int, gated: bool, negative: bool
    ) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.num_writes, self.negative = num_heads, head_size, num_writes, negative
        width = num_heads * head_size
        self.maps = nn.Linear(hidden_size, (2 + 2 * num_writes) * width, bias=False)  # rows: q, W_g, every k, every v
        self.rate = nn.Linear(hidden_size, num_writes * num_heads, bias=False)
        self.decay = Decay(hidden_size, num_heads) if gated else None
        self.scale = nn.Parameter(torch.ones(head_size))
        self.out = nn.Linear(width, hidden_size, bias=False)

    def initial_state(self, batch_size: int) -> DeltaNetState:
        return DeltaNetState(self.scale.new_zeros(batch_size, self.num_heads, self.head_size, self.head_size))

    def forward(self, u: Tensor, state: DeltaNetState, steps: Steps | None) -> tuple[Tensor, DeltaNetState]:
        writes = self.num_writes
        maps = F.silu(self.maps(u)).unflatten(-1, (2 + 2 * writes, self.num_heads, self.head_size)).transpose(-3, -2)
        query, gate, keys, values = maps.split([1, 1, writes, writes], -2)
        query, keys = _unit(query.squeeze(-2)), _unit(keys)  # [..., H, d], [..., H, n, d]
        rates = torch.sigmoid(self.rate(u)).unflatten(-1, (writes, self.num_heads)).transpose(-2, -1)  # [..., H, n]
        rates = 2 * rates if self.negative else rates
        log_decay = self.decay(u) if self.decay is not None else torch.zeros_like(rates[..., 0])
        if steps is None:
            weights = state.fast_weights * log_decay.exp()[..., None, None]
            for key, value, rate in zip(keys.unbind(-2), values.unbind(-2), rates.split(1, -1), strict=True):
                old = torch.einsum("bhkv,bhk->bhv", weights, key)
                weights = weights + key.unsqueeze(3) * (rate * (value - old)).unsqueeze(2)
            read = torch.einsum("bhkv,bhk->bhv", weights, query)
        else:
            parts, initial = (query, keys, values, rates, log_decay), self.initial_state
            read, (weights,) = unroll_chunks(_delta_chunk, parts, steps.reset, state, initial, steps.bptt_length)
        read = F.rms_norm(read, read.shape[-1:], self.scale, 1e-5)
        return self.out((read * gate.squeeze(-2)).flatten(-2)), DeltaNetState(weights)


class Decay(nn.Module):
    """log alpha [..., H] = -exp(a) softplus(w u + b) < 0, one value per head; a and b as in Mamba-2."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.empty(num_heads).uniform_(1, 16).log())
        self.step = nn.Linear(hidden_size, num_heads)
        with torch.no_grad():
            self.step.bias.copy_(torch.empty(num_heads).uniform_(-6.9, -2.3).exp().expm1().log())

    def forward(self, u: Tensor) -> Tensor:
        return -self.rate.exp() * F.softplus(self.step(u))


def _unit(x: Tensor) -> Tensor:
    return x * x.norm(dim=-1, keepdim=True).clamp_min(1e-6).reciprocal()


def _delta_chunk(steps: States, used: Tensor, start: States) -> tuple[Tensor, States]:
    """Compute a chunk of L steps (`Chunk`): the reads [N, H, L, d] and the final fast weights. The n writes of a
    step follow each other like steps, with the decay before the first. With G_m the sum of log alpha up to write m, S
    before write m is exp(G_m) S_0 + sum_{j < m} exp(G_m - G_j) k_j u_j^T, u_m = beta_m (v_m - S^T k_m)."""
    query, keys, values, rates, log_decay = steps
    (weights,) = start
    writes = keys.shape[3]
    rates = torch.where(used[..., None], rates, 0.0)
    key, value, rate = (x.flatten(2, 3) for x in (keys, values, rates.unsqueeze(4)))  # [N, H, M, ...], M = L n
    total = torch.where(used, log_decay, 0.0).cumsum(2)  # [N, H, L]
    decay = total.repeat_interleave(writes, 2) if writes > 1 else total
    causal = torch.ones(decay.shape[2], decay.shape[2], dtype=torch.bool, device=decay.device).tril()
    between = torch.where(causal, decay.unsqueeze(3) - decay.unsqueeze(2), -torch.inf).exp()
    scaled = rate * key
    system = (between * (scaled @ key.mT)).tril(-1)
    targets = rate * value - decay.exp().unsqueeze(3) * (scaled @ weights)
    solvable = torch.promote_types(system.dtype, torch.float32)  # torch cannot solve systems in half precision
    written = torch.linalg.solve_triangular(system.to(solvable), targets.to(solvable), upper=False, unitriangular=True)
    written = written.to(system.dtype)
    weight = between[:, :, writes - 1 :: writes] * (query @ key.mT)
    read = total.exp().unsqueeze(3) * (query @ weights) + weight @ written
    left = between[:, :, -1].unsqueeze(3) * key
    after = total[:, :, -1, None, None].exp() * weights + left.mT @ written
    return read, (after,)


class MLSTMState(NamedTuple):
    c: Tensor  # [B, num_layers, num_heads, d, d + 1]: C^T with last column n
    m: Tensor  # [B, num_layers, num_heads]: the stabilizer


class MLSTM(Stack):
    """mLSTM: residual layers (see `Stack`), each an LSTM with a matrix C per head as its cell; d = head_size.
    Beck et al. 2024, "xLSTM: Extended long short-term memory", section 2.3.

        q, v = W_q u, W_v u,  k = W_k u / sqrt(d),  o = sigmoid(W_o u)                        (equations 21 to 24, 27)
        i = exp(i'), i' = w_i u + b_i;   f = sigmoid(f'), f' = w_f u + b_f                    (equations 25, 26)
        m_t = max(log f_t + m_{t-1}, i'_t)                                                    (equation 15)
        C_t = exp(log f + m_{t-1} - m_t) C_{t-1} + exp(i' - m_t) v k^T                        (equation 19)
        n_t = exp(log f + m_{t-1} - m_t) n_{t-1} + exp(i' - m_t) k                            (equation 20)
        h = C_t q / max(|n_t q|, exp(-m_t))                                                   (equation 21)
        added = W_p [o * LayerNorm(h)]                                                        norm per head

    Choices left open by the paper: f is a sigmoid; C, n and m start at zero; no convolution, up-projection or learned
    skip around the cell. As in the released code (github.com/NX-AI/xlstm), 1 in equation 21 is exp(-m) for the
    stabilized state; initially, b_i is normal with deviation 0.1, b_f is evenly spread from 3 to 6, w_i = w_f = 0.
    """

    def __init__(
        self, input_size: int, hidden_size: int = 128, num_layers: int = 1, num_heads: int = 4, head_size: int = 32
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, MLSTMMixer, num_heads, head_size)


class MLSTMMixer(Mixer):
    def __init__(self, hidden_size: int, num_heads: int, head_size: int) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, head_size
        self.maps = nn.Linear(hidden_size, 4 * num_heads * head_size, bias=False)  # rows: q, k, v, o
        self.gates = nn.Linear(hidden_size, 2 * num_heads)  # rows: i', f'
        self.scale = nn.Parameter(torch.ones(num_heads, head_size))
        self.out = nn.Linear(num_heads * head_size, hidden_size, bias=False)
        with torch.no_grad():
            self.gates.weight.zero_()
            self.gates.bias[:num_heads].normal_(0, 0.1)
            self.gates.bias[num_heads:] = torch.linspace(3, 6, num_heads)

    def initial_state(self, batch_size: int) -> MLSTMState:
        c = self.scale.new_zeros(batch_size, self.num_heads, self.head_size, self.head_size + 1)
        return MLSTMState(c, self.scale.new_zeros(batch_size, self.num_heads))

    def forward(self, u: Tensor, state: MLSTMState, steps: Steps | None) -> tuple[Tensor, MLSTMState]:
        query, key, value, gate = self.maps(u).unflatten(-1, (4, self.num_heads, self.head_size)).unbind(-3)
        log_input, forget = self.gates(u).chunk(2, -1)
        key, log_forget = key / math.sqrt(self.head_size), F.logsigmoid(forget)
        value = F.pad(value, (0, 1), value=1.0)  # [..., H, d + 1]: reads n, too
        if steps is None:
            m = torch.maximum(log_forget + state.m, log_input)
            decay, new = (log_forget + state.m - m).exp(), (log_input - m).exp()
            c = decay[..., None, None] * state.c + new[..., None, None] * (key.unsqueeze(3) * value.unsqueeze(2))
            h = _normalize(torch.einsum("bhkv,bhk->bhv", c, query), m)
        else:
            parts = (query, key, value, log_input, log_forget)
            h, (c, m) = unroll_chunks(_mlstm_chunk, parts, steps.reset, state, self.initial_state, steps.bptt_length)
        h = torch.sigmoid(gate) * F.layer_norm(h, h.shape[-1:]) * self.scale
        return self.out(h.flatten(-2)), MLSTMState(c, m)


def _normalize(read: Tensor, m: Tensor) -> Tensor:
    """C q with an appended n q [..., d + 1] -> h [..., d]."""
    return read[..., :-1] / torch.maximum(read[..., -1].abs(), (-m).exp()).unsqueeze(-1)


def _mlstm_chunk(steps: States, used: Tensor, start: States) -> tuple[Tensor, States]:
    """Compute a chunk of L steps (`Chunk`): h [N, H, L, d], and the final C and m. With F_t the sum of log f,
    m_t = max(F_t + m_0, F_t - F_j + i'_j for j <= t), and every factor is exp(... - m_t)."""
    query, key, value, log_input, log_forget = steps
    c, m = start
    total = torch.where(used, log_forget, 0.0).cumsum(2)  # [N, H, L]
    log_input = torch.where(used, log_input, -torch.inf)
    stabilizer = total + torch.maximum(m.unsqueeze(2), (log_input - total).cummax(2).values)
    causal = torch.ones(total.shape[2], total.shape[2], dtype=torch.bool, device=total.device).tril()
    exponent = (total - stabilizer).unsqueeze(3) + (log_input - total).unsqueeze(2)
    weight = torch.where(causal, exponent, -torch.inf).exp()
    at_start = (total + m.unsqueeze(2) - stabilizer).exp().unsqueeze(3)
    read = at_start * (query @ c) + (weight * (query @ key.mT)) @ value
    after = at_start[:, :, -1, None] * c + (weight[:, :, -1].unsqueeze(3) * key).mT @ value
    return _normalize(read, stabilizer), (after, stabilizer[:, :, -1])
