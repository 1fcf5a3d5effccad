"""Panels of the cores, by class. A half-life is the number of steps after which half of an addition has decayed."""

from itertools import combinations
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..cores.concrete import Concrete
from ..cores.fwm import FWM
from ..cores.gtrxl import GTrXL
from ..cores.linear.elementwise import FFM, LRU, Block, MinGRU
from ..cores.mnm import MNM, recall
from ..cores.rmc import RMC, RelationalBlock
from .panels import MOST_ROWS, Panel, described, each, heat, lines, liveliest, numbered, panels_of, values
from .trace import Trace


@panels_of.register
def _(core: RMC, trace: Trace) -> list[Panel]:
    before, after = trace.before.memory, trace.after.memory
    projected = core.input_projection(trace.inputs)
    weights = attention(core, before, projected)
    slots, heads = numbered("slot", core.num_slots), numbered("head", core.num_heads)
    by_head = "Share of each slot's attention on the new input, by head; the rest is on the slots."
    by_slot = "Each band is an attending slot: its attention on each slot and on the input; mean over the heads."
    to_input, between = weights[..., -1], weights.mean(1)
    bands = [(head, k * len(slots)) for k, head in enumerate(heads)]
    rows = [(slot, k * (len(slots) + 1)) for k, slot in enumerate(slots)]
    panels = [
        heat("attention to the input", by_head, to_input, each(heads, slots), "share", bands),
        heat("attention of the slots", by_slot, between, each(slots, (*slots, "input")), "share", rows),
    ]
    if core.gates:
        note = "Mean activation per slot: the input gate writes attended values, the forget gate keeps the slot."
        names = ("input gate", "forget gate")
        gates = torch.cat(openness(core, before, projected), 1)
        panels.append(heat("gates", note, gates, each(names, slots), "share", [(names[0], 0), (names[1], len(slots))]))
    if pairs := list(combinations(range(len(slots)), 2)):
        unit = F.normalize(after, dim=2)
        alike = torch.stack([(unit[:, a] * unit[:, b]).sum(1) for a, b in pairs], 1)
        names = tuple(f"{slots[a]} and {b + 1}" for a, b in pairs)
        panels.append(heat("similarity of slots", "Cosine of each pair.", alike, names, "signed"))
    change = (after - before).norm(dim=2) / after.norm(dim=2).clamp(min=1e-8)
    panels.append(lines("change of slots", "Norm of the change as a share of the slot's norm.", change, slots))
    return panels


def attention(core: RMC, memory: Tensor, projected: Tensor) -> Tensor:
    """Compute the slots' attention weights in the first block, [T, H, N, N + 1].

    memory [T, N, F] and x' [T, F] give
    softmax(q k^T / sqrt(K)), with q, k of LayerNorm(Z W_qkv + b_qkv)    (Santoro et al. 2018, equation 2)
    """
    block = cast(RelationalBlock, core.blocks[0])
    key_size = block.sizes[0]
    rows = torch.cat([memory, projected.unsqueeze(1)], 1)
    qkv = block.qkv_norm(block.qkv(rows)).unflatten(2, (block.num_heads, -1))
    q, k = qkv[..., :key_size], qkv[..., key_size : 2 * key_size]
    scores = torch.einsum("tnhk,tmhk->thnm", q[:, : core.num_slots], k)
    return (scores * key_size**-0.5).softmax(-1)


def openness(core: RMC, memory: Tensor, projected: Tensor) -> list[Tensor]:
    """Compute the mean activations of every slot's input and forget gates, [T, N] each (equations 5 and 6)."""
    from_input = core.input_gates[0](projected).unsqueeze(1) + core.memory_gates[0](memory.tanh())
    gates = from_input.chunk(2, -1)
    return [(gate + bias).sigmoid().mean(2) for gate, bias in zip(gates, core.gate_biases, strict=True)]


@panels_of.register
def _(core: GTrXL, trace: Trace) -> list[Panel]:
    weights = torch.stack(core.attention(trace.before, trace.after), 1)  # [T, layers, heads, M + 1]
    steps, layers, heads, window = weights.shape
    ages = (weights * torch.arange(window - 1, -1, -1)).sum(-1)
    by_step = torch.zeros(steps, steps)
    for t in range(steps):
        reach = min(t, window - 1)  # the last weights are those of steps t - reach .. t
        by_step[t, t - reach : t + 1] = weights[t].mean((0, 1))[window - 1 - reach :]
    age = "Mean age, in steps, of the inputs that a head attends to; 0 is the current step."
    share = "Across: attending step. Down: attended step. Color: share of all heads' attention."
    return [
        lines("attention distance", age, ages, each(numbered("layer", layers), numbered("head", heads))),
        heat("attention by step", share, by_step, [f"step {t}" for t in range(steps)], "share"),
    ]


@panels_of.register
def _(core: FWM, trace: Trace) -> list[Panel]:
    share, added = attribution(core, trace)
    strength = torch.stack([core.compute_write(trace.after.controller.h).rate.squeeze(1), added], 1)
    norms = "beta times the write scale, and the norm of the memory's update."
    reads = "Across: reading step. Down: writing step. Color: share of the last hop's read."
    writes = [f"written at step {t}" for t in range(len(share))]
    return [
        lines("strength of the write", norms, strength, ("strength", "added")),
        heat("reads by the step of their write", reads, share, writes, "share"),
    ]


def attribution(core: FWM, trace: Trace) -> tuple[Tensor, Tensor]:
    """Attribute each step's last read to writes: shares [T, T] and sizes of writes [T]. Since F_t = sum_j
    w_tj k1_j (x) k2_j (x) u_j, with u_j = rate_j (v_j - F_{j-1} (k1_j (x) k2_j)) and w_tj the product of all rescalings
    from j to t, write j contributes w_tj (k1_j . n) (k2_j . e) u_j to a read of n (x) e. Its share is the norm of
    this contribution over the sum of norms. The episode must begin with an empty memory."""
    hidden = trace.after.controller.h
    new, queries = core.compute_write(hidden), core.compute_read(hidden)
    before, after = trace.before.memory, trace.after.memory

    def look_up(memory: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return torch.einsum("tabv,ta,tb->tv", memory, first, second)

    added = new.rate * (new.value - look_up(before, new.key1, new.key2))
    grown = before + torch.einsum("ta,tb,tv->tabv", new.key1, new.key2, added)
    logs = -grown.flatten(1).norm(dim=1).clamp(min=1).log().cumsum(0)
    # log w_tj = log s_j + .. + log s_t
    earlier = torch.cat([torch.zeros_like(logs[:1]), logs[:-1]])
    weight = (logs.unsqueeze(1) - earlier).tril().exp().tril()
    result = queries.query
    for hop in queries.hops.unbind(1)[:-1]:
        result = F.layer_norm(look_up(after, result, hop), result.shape[-1:])
    last = queries.hops[:, -1]
    part = (weight * (result @ new.key1.t()) * (last @ new.key2.t())).abs() * added.norm(dim=1)
    return part / part.sum(1, keepdim=True).clamp(min=1e-12), added.norm(dim=1)


@panels_of.register
def _(core: MNM, trace: Trace) -> list[Panel]:
    layers = list(zip(trace.before.memory, trace.after.memory, strict=True))
    change = torch.stack([(new - old).flatten(1).norm(dim=1) / old.flatten(1).norm(dim=1) for old, new in layers], 1)
    rate, key, value, _ = core.heads(trace.after.controller.h)
    recalled = (recall(state.memory, key)[-1] for state in (trace.before, trace.after))
    errors = torch.stack([(x - value).square().mean((1, 2)) for x in recalled], 1)
    distance = "Mean squared distance of f(write key) from the value to be written, before and after the write."
    written = "Norm of the write, as a fraction of the layer's norm before it."
    read, names = "The values that were read from the memory.", numbered("value", core.memory_size)
    return [
        lines("change of the written weights", written, change, numbered("layer", len(layers))),
        lines("reconstruction error of the write", distance, errors, ("before", "after")),
        lines("rate of the write", "beta, from 0 to 1.", rate, ("rate",), "share"),
        heat("what is read", read, trace.after.read, names, "signed"),
    ]


@panels_of.register
def _(core: MinGRU, trace: Trace) -> list[Panel]:
    # h_t = (1 - z_t) h_{t-1} + z_t n_t
    inputs = (trace.inputs, *trace.after.h.unbind(1)[:-1])
    rates = [1 - core.gates(layer(x))[0].mean(1) for layer, x in zip(core.layers, inputs, strict=True)]
    note, layers = "Mean of z: the share of a unit that a step replaces.", numbered("layer", len(core.layers))
    return [lines("update rate", note, torch.stack(rates, 1), layers, "share"), *described(core, trace)]


@panels_of.register
def _(core: Concrete, trace: Trace) -> list[Panel]:
    most = max(MOST_ROWS // core.num_pools, 1)
    rows, labels, bands = [], [], []
    for n, half_life in enumerate(core.half_lives()):
        series = values(trace.after.pools[:, n])
        selected = liveliest(series, most)
        bands.append((f"pool {n + 1}: half-life {half_life:.3g}", len(labels)))
        rows.append(series[selected] / max(float(np.abs(series).max()), 1e-12))
        labels += [f"pool {n + 1}, feature {i + 1}" for i in selected]
    note = (
        f"Each band is a pool: its {len(rows[0])} most active features, scaled to the pool's largest value. "
        "After the half-life (in steps), half of an input's effect on the pool has decayed."
    )
    sizes = trace.after.pools.norm(dim=2)
    return [
        Panel("pools by time scale", note, "heat", np.concatenate(rows), tuple(labels), "signed", bands=tuple(bands)),
        lines("size of the pools", "Euclidean norm.", sizes, numbered("pool", core.num_pools)),
    ]


@panels_of.register
def _(core: LRU, trace: Trace) -> list[Panel]:
    panels: list[Panel] = []
    for index, block in enumerate(core.blocks):
        assert isinstance(block, Block)
        title = "size of the states" if len(core.blocks) == 1 else f"block {index + 1}: states"
        panels.append(by_half_life(title, "unit", trace.after.h[:, index].norm(dim=2), block.half_lives()))
    return panels


@panels_of.register
def _(core: FFM, trace: Trace) -> list[Panel]:
    sizes = trace.after.traces.flatten(2).norm(dim=2)
    return [by_half_life("size of the traces", "trace", sizes, core.half_lives())]


def by_half_life(title: str, name: str, sizes: Tensor, half_lives: Tensor) -> Panel:
    """Show magnitudes [T, N] of complex states from fast to slow, each relative to its maximum."""
    series, spans = values(sizes), half_lives.detach().double().numpy()
    order = np.argsort(spans, kind="stable")
    rows = order[np.linspace(0, len(order) - 1, min(len(order), MOST_ROWS)).round().astype(int)]
    labels = tuple(f"{name} {i + 1}: half-life {spans[i]:.3g}" for i in rows)
    shares = series[rows] / np.maximum(series[rows].max(1, keepdims=True), 1e-12)
    note = "From fast (top) to slow: absolute value, as a share of the largest in this episode."
    if len(rows) < len(order):
        note += f" {len(rows)} of {len(order)}, evenly spaced."
    return Panel(f"{title} by half-life", note, "heat", shares, labels, "share")
