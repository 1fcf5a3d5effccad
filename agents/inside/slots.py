"""Panels of memories with attention: slots and gates of the RMC, and GTrXL's window of past inputs."""

from itertools import combinations
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cores.gtrxl import GTrXL
from ..cores.rmc import RMC, RelationalBlock
from .panels import Panel, each, numbered, panels_of, values
from .trace import Trace


@panels_of.register
def _(core: RMC, trace: Trace) -> list[Panel]:
    before, after = trace.before.memory, trace.after.memory
    projected = core.input_projection(trace.inputs)
    weights = attention(core, before, projected)
    slots, heads = numbered("slot", core.num_slots), numbered("head", core.num_heads)
    to_input = values(weights[..., core.num_slots :].sum(-1))
    panels = [
        Panel(
            "attention to the input",
            "Share of each slot's attention on the new input, by head; the rest is on the slots.",
            "heat",
            to_input,
            each(heads, slots),
            "share",
            bands=tuple((head, k * len(slots)) for k, head in enumerate(heads)),
        )
    ]
    if core.gates:
        gates = openness(core, before, projected)
        panels.append(
            Panel(
                "gates",
                "Mean activation per slot: the input gate writes attended values, the forget gate keeps the slot.",
                "heat",
                values(torch.cat(gates, 1)),
                each(("input gate", "forget gate"), slots),
                "share",
                bands=(("input gate", 0), ("forget gate", len(slots))),
            )
        )
    pairs = list(combinations(range(len(slots)), 2))
    if pairs:
        unit = F.normalize(after, dim=2)
        alike = torch.stack([(unit[:, a] * unit[:, b]).sum(1) for a, b in pairs], 1)
        names = tuple(f"{slots[a]} and {b + 1}" for a, b in pairs)
        panels.append(Panel("similarity of slots", "Cosine of each pair.", "heat", values(alike), names, "signed"))
    change = (after - before).norm(dim=2) / after.norm(dim=2).clamp(min=1e-8)
    panels.append(
        Panel("change of slots", "Norm of the change as a share of the slot's norm.", "lines", values(change), slots)
    )
    panels.append(
        Panel(
            "attention at this step",
            "Rows: attending slots. Columns: attended slots and the input.",
            "matrix",
            values(weights),
            (),
            "share",
            tables=(heads, slots, (*slots, "input")),
        )
    )
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
    lags = torch.arange(window - 1, -1, -1)
    by_step = torch.zeros(steps, steps)
    for t in range(steps):
        reach = min(t, window - 1)  # the last weights are those of steps t - reach .. t
        by_step[t, t - reach : t + 1] = weights[t].mean((0, 1))[window - 1 - reach :]
    names = each(numbered("layer", layers), numbered("head", heads))
    return [
        Panel(
            "attention distance",
            "Mean age, in steps, of the inputs that a head attends to; 0 is the current step.",
            "lines",
            values((weights * lags).sum(-1)),
            names,
        ),
        Panel(
            "attention by step",
            "Across: attending step. Down: attended step. Color: share of all heads' attention.",
            "heat",
            values(by_step),
            tuple(f"step {t}" for t in range(steps)),
            "share",
        ),
    ]
