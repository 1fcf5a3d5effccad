"""Inspection of a memory: traces of a core's steps, panels that show them, and parts of a state for interventions.

A core's panels are registered for its class with `panels_of.register`; a core without any gets a heat map of each array
that its `describe` returns. A half-life is the number of steps after which half of an addition has decayed.
"""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import singledispatch
from itertools import combinations, product
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ..base.errors import EngramError, advice, nearest, refuse
from .cores.concrete import Concrete
from .cores.core import Core, CoreState, map_named, map_state, named_leaves, state_leaves
from .cores.fwm import FWM
from .cores.gtrxl import GTrXL
from .cores.linear.elementwise import FFM, LRU, Block, MinGRU
from .cores.mnm import MNM, recall
from .cores.rmc import RMC, RelationalBlock

STATE_METRICS = ("state/norm", "state/saturation", "state/effective_rank")
SATURATED = 0.95  # Magnitude from which a value between -1 and 1 is considered saturated
MOST_STATES = 128  # Largest number of evenly spaced states of an episode for the effective rank
Values = NDArray[np.float32]
Scale: TypeAlias = Literal["share", "signed"]  # 0 to 1, or symmetric around 0; curves span their values
MOST_ROWS = 128  # Largest number of rows of an array's heat map, for legibility


class Trace(NamedTuple):
    """T steps of one environment, with time on the batch axis, so that a core's modules process all steps at once."""

    inputs: Tensor  # [T, D]
    before: CoreState  # Leaves [T, ...]
    after: CoreState  # Leaves [T, ...]


@contextmanager
def recorded(core: nn.Module) -> Generator[list[Trace]]:
    """Collect the calls of `core`, one batch [B, ...] each, inside a `with` statement; hooks are removed at its end."""
    calls: list[Trace] = []

    def note(_: nn.Module, arguments: tuple[Any, ...], result: tuple[Tensor, CoreState]) -> None:
        calls.append(Trace(arguments[0], arguments[1], result[1]))

    with core.register_forward_hook(note):  # pyright: ignore[reportUnknownMemberType]
        yield calls


def over_time(calls: list[Trace], index: int) -> Trace:
    """Stack the calls of one environment of the batch."""

    def row(*leaves: Tensor) -> Tensor:
        return torch.stack([leaf[index].detach().cpu() for leaf in leaves])

    return Trace(*(map_state(row, *states) for states in zip(*calls, strict=True)))


def statistics(trace: Trace) -> dict[str, float]:
    """Compute those STATE_METRICS over an episode that apply to this recurrent state; counters are left out."""
    leaves = [x.flatten(1).float() for x in state_leaves(trace.after) if x.is_floating_point() and x.dim() > 1]
    if not leaves:
        return {}
    states = torch.cat(leaves, 1)
    metrics = {"state/norm": float(states.norm(dim=1).mean()), "state/effective_rank": effective_rank(states)}
    bounded = [leaf for leaf in leaves if float(leaf.abs().max()) <= 1.0]
    if bounded:
        metrics["state/saturation"] = float((torch.cat(bounded, 1).abs() > SATURATED).float().mean())
    return metrics


def effective_rank(states: Tensor) -> float:
    """Compute the effective number of directions in which states [K, D] differ from their mean; 0 if all are equal.

    exp(-sum_i p_i log p_i), p_i = s_i / sum_j s_j, s the singular values    (Roy and Vetterli 2007, equations 2 to 4)
    """
    chosen = torch.linspace(0, len(states) - 1, min(len(states), MOST_STATES)).round().long()
    centered = states[chosen].double()
    centered = centered - centered.mean(0)
    # The squared singular values are the eigenvalues of X X^T, which is small even if states are large.
    values = torch.linalg.eigvalsh(centered @ centered.T).clamp(min=0).sqrt()
    total = float(values.sum())
    if total <= 1e-9 * max(float(states.abs().max()), 1e-30):
        return 0.0
    shares = values[values > 1e-6 * total] / total
    return float((-(shares * shares.log()).sum()).exp())


def mask(core: Core, name: str = "", which: str = "") -> CoreState:
    """Return bool leaves [1, ...], True in the parts `name=which`, such as `slot=2` or `pool=5-8`, or everywhere
    without a name. Parts are those of `Core.parts_of_state`, counted from 1; `leaf=controller` selects a leaf in any
    core. Raises ValueError."""
    form = core.initial_state(1)
    leaves = list(named_leaves(form))
    whole = set(leaves if name == "" else ())
    if name == "leaf":
        whole = {leaf for leaf in leaves if f"{leaf}.".startswith(f"{which}.")}
        groups = {leaf.rpartition(".")[0] for leaf in leaves} - {""}
        refuse(not whole, f"leaf is {which!r}; {advice(which, [*leaves, *sorted(groups)])}")
    marked = map_named(lambda leaf, values: torch.full_like(values, leaf in whole, dtype=torch.bool), form)
    axes = [axis for axis in core.parts_of_state if axis.part == name]
    if name not in ("", "leaf") and not axes:
        names = dict.fromkeys(axis.part for axis in core.parts_of_state)
        raise EngramError(f"this core has no part {name!r}; available: {nearest(name, [*names, 'leaf'])}")
    for axis in axes:
        size = getattr(form, axis.leaf).shape[axis.dim]
        count = getattr(core, axis.counted_by) if axis.counted_by else size
        width = size // count
        indices = [n * width + k for n in _parse(name, which, count) for k in range(width)]
        getattr(marked, axis.leaf).index_fill_(axis.dim, torch.tensor(indices), True)
    return marked


def _parse(name: str, which: str, count: int) -> list[int]:
    """Parse `2`, `5-8` or `2,5-8` to indices from 0."""
    indices: list[int] = []
    for text in which.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= count:
            raise EngramError(f"{name} is {which!r}; allowed: 1..{count}, a range (1-{count}), or several (1,{count})")
        indices += range(first - 1, last)
    return indices


class Panel(NamedTuple):
    """R quantities at T steps."""

    title: str
    note: str  # Explanation of the panel
    kind: Literal["heat", "lines"]  # A row of colors for each quantity, or a curve for each
    values: Values  # [R, T]
    labels: Sequence[str]  # Labels of the R quantities; "" for rows of a heat map without one
    scale: Scale = "signed"


def heat(title: str, note: str, series: Tensor, labels: Sequence[str], scale: Scale) -> Panel:
    """Show series [T, ...] as rows of colors."""
    return Panel(title, note, "heat", values(series), labels, scale)


def lines(title: str, note: str, series: Tensor, labels: Sequence[str]) -> Panel:
    """Show series [T, ...] as curves."""
    return Panel(title, note, "lines", values(series), labels)


def values(tensor: Tensor) -> Values:
    """Reshape [T, ...] -> [R, T] for a panel."""
    return tensor.detach().flatten(1).t().contiguous().float().numpy()


def panels(core: Core, trace: Trace) -> list[Panel]:
    """Return all panels of a core: those of its class, then the norms of its state and of the change per step."""
    with torch.no_grad():
        return [*panels_of(core, trace), *size_and_change(trace)]


def described(core: Core, trace: Trace) -> list[Panel]:
    """Return one panel for every array that a core describes: the panels of a class without its own."""
    return [
        most_active(f"state: {name}", "values of the state", name, values(array))
        for name, array in core.describe(trace.after).items()
    ]


panels_of = singledispatch(described)


def most_active(title: str, what: str, label: str, series: Values) -> Panel:
    """Show those of the series [R, T] that vary most as rows of colors."""
    rows = np.sort(np.argsort(-series.std(1), kind="stable")[:MOST_ROWS])
    note = f"The {len(rows)} of {len(series)} {what} that change most."
    return Panel(title, note, "heat", series[rows], [f"{label} {i}" for i in rows])


def size_and_change(trace: Trace) -> list[Panel]:
    """Show the norm of every leaf, and the relative norm of its change at each step."""
    before, after = (named_leaves(map_state(Tensor.float, state)) for state in (trace.before, trace.after))
    if not after:
        return []
    norms = torch.stack([leaf.norm(dim=1) for leaf in after.values()], 1)
    changes = torch.stack([(leaf - before[name]).norm(dim=1) for name, leaf in after.items()], 1)
    note = "Norm of the change, as a fraction of the norm after the step."
    return [
        lines("size of the state", "Euclidean norm of each part.", norms, list(after)),
        lines("change per step", note, changes / norms.clamp(min=1e-8), list(after)),
    ]


def numbered(name: str, count: int) -> list[str]:
    """Labels `slot 1`, `slot 2`, ..., counted from 1 as in interventions."""
    return [f"{name} {k}" for k in range(1, count + 1)]


def each(*names: Sequence[str]) -> list[str]:
    """Return all combinations of names, the last varying fastest: labels of a flattened array."""
    return list(map(", ".join, product(*names)))


@panels_of.register
def _(core: RMC, trace: Trace) -> list[Panel]:
    before, after = trace.before.memory, trace.after.memory
    projected = core.input_projection(trace.inputs)
    weights = attention(core, before, projected)
    slots, heads = numbered("slot", core.num_slots), numbered("head", core.num_heads)
    by_head = "Share of each slot's attention on the new input, by head; the rest is on the slots."
    by_slot = "Share of each slot's attention on each slot and on the input; mean over the heads."
    panels = [
        heat("attention to the input", by_head, weights[..., -1], each(heads, slots), "share"),
        heat("attention of the slots", by_slot, weights.mean(1), each(slots, [*slots, "input"]), "share"),
    ]
    if core.gates:
        note = "Mean activation per slot: the input gate writes attended values, the forget gate keeps the slot."
        gates = torch.cat(openness(core, before, projected), 1)
        panels.append(heat("gates", note, gates, each(["input gate", "forget gate"], slots), "share"))
    if pairs := list(combinations(range(len(slots)), 2)):
        unit = F.normalize(after, dim=2)
        alike = torch.stack([(unit[:, a] * unit[:, b]).sum(1) for a, b in pairs], 1)
        names = [f"{slots[a]} and {b + 1}" for a, b in pairs]
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
    new = core.compute_write(trace.after.controller.h)
    old = torch.einsum("tabv,ta,tb->tv", trace.before.memory, new.key1, new.key2)
    strength = torch.stack([new.rate.squeeze(1), (new.rate * (new.value - old)).norm(dim=1)], 1)
    note = "beta times the write scale, and the norm of the memory's update."
    return [lines("strength of the write", note, strength, ["strength", "added"]), *described(core, trace)]


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
        lines("reconstruction error of the write", distance, errors, ["before", "after"]),
        lines("rate of the write", "beta, from 0 to 1.", rate, ["rate"]),
        heat("what is read", read, trace.after.read, names, "signed"),
    ]


@panels_of.register
def _(core: MinGRU, trace: Trace) -> list[Panel]:
    # h_t = (1 - z_t) h_{t-1} + z_t n_t
    inputs = (trace.inputs, *trace.after.h.unbind(1)[:-1])
    rates = [1 - core.gates(layer(x))[0].mean(1) for layer, x in zip(core.layers, inputs, strict=True)]
    note, layers = "Mean of z: the share of a unit that a step replaces.", numbered("layer", len(core.layers))
    return [lines("update rate", note, torch.stack(rates, 1), layers), *described(core, trace)]


@panels_of.register
def _(core: Concrete, trace: Trace) -> list[Panel]:
    pools = trace.after.pools  # [T, N, F]
    note = "Relative to a pool's largest value. After the half-life (in steps), half of an input's effect has decayed."
    shares = pools / pools.abs().amax((0, 2), keepdim=True).clamp(min=1e-12)
    labels: list[str] = []
    for n, half_life in enumerate(core.half_lives(), 1):
        labels += [f"pool {n}: half-life {half_life:.3g}"] + [""] * (core.pool_size - 1)
    return [
        heat("pools by time scale", note, shares, labels, "signed"),
        lines("size of the pools", "Euclidean norm.", pools.norm(dim=2), numbered("pool", core.num_pools)),
    ]


@panels_of.register
def _(core: LRU, trace: Trace) -> list[Panel]:
    blocks, names = cast(list[Block], core.blocks), numbered("block", len(core.blocks))
    sizes = trace.after.h.norm(dim=3).unbind(1)
    return [
        by_half_life(f"{name}: states", "unit", size, block.half_lives())
        for name, size, block in zip(names, sizes, blocks, strict=True)
    ]


@panels_of.register
def _(core: FFM, trace: Trace) -> list[Panel]:
    sizes = trace.after.traces.flatten(2).norm(dim=2)
    return [by_half_life("size of the traces", "trace", sizes, core.half_lives())]


def by_half_life(title: str, name: str, sizes: Tensor, half_lives: Tensor) -> Panel:
    """Show magnitudes [T, N] of complex states from fast to slow, each relative to its maximum."""
    order = half_lives.argsort(stable=True)
    labels = [f"{name} {i + 1}: half-life {half_lives[i]:.3g}" for i in order.tolist()]
    note = "From fast (top) to slow: absolute value, as a share of the largest in this episode."
    shares = (sizes / sizes.amax(0).clamp(min=1e-12))[:, order]
    return heat(f"{title} by half-life", note, shares, labels, "share")
