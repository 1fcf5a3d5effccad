"""Panels of memories with explicit writes: FWM's fast weights and MNM's memory network."""

import torch
from torch import Tensor

from ..cores.fwm import FWM
from ..cores.mnm import MNM, recall
from .panels import Panel, numbered, panels_of, values
from .trace import Trace


@panels_of.register
def _(core: FWM, trace: Trace) -> list[Panel]:
    share, added, norm = attribution(core, trace)
    strength = torch.stack([core.compute_write(trace.after.controller.h).rate.squeeze(1), added], 1)
    writes = tuple(f"written at step {t}" for t in range(len(share)))
    return [
        Panel(
            "strength of the write",
            "beta times the write scale, and the norm of the memory's update.",
            "lines",
            values(strength),
            ("strength", "added"),
        ),
        Panel("norm of the fast weights", "At most 1.", "lines", values(norm.unsqueeze(1)), ("norm",)),
        Panel(
            "reads by the step of their write",
            "Across: reading step. Down: writing step. Color: share of the last hop's read.",
            "heat",
            values(share),
            writes,
            "share",
        ),
    ]


def attribution(core: FWM, trace: Trace) -> tuple[Tensor, Tensor, Tensor]:
    """Attribute each step's last read to writes: shares [T, T], sizes of writes [T], norms of F [T]. Since F_t = sum_j
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
        result = torch.nn.functional.layer_norm(look_up(after, result, hop), result.shape[-1:])
    last = queries.hops[:, -1]
    part = (weight * (result @ new.key1.t()) * (last @ new.key2.t())).abs() * added.norm(dim=1)
    return part / part.sum(1, keepdim=True).clamp(min=1e-12), added.norm(dim=1), after.flatten(1).norm(dim=1)


@panels_of.register
def _(core: MNM, trace: Trace) -> list[Panel]:
    layers = list(zip(trace.before.memory, trace.after.memory, strict=True))
    change = torch.stack([(new - old).flatten(1).norm(dim=1) / old.flatten(1).norm(dim=1) for old, new in layers], 1)
    rate, key, value, _ = core.heads(trace.after.controller.h)

    def error(memory: object) -> Tensor:
        return (recall(memory, key)[-1] - value).square().mean((1, 2))  # pyright: ignore[reportArgumentType]

    errors = torch.stack([error(trace.before.memory), error(trace.after.memory)], 1)
    return [
        Panel(
            "change of the written weights",
            "Norm of the write, as a fraction of the layer's norm before it.",
            "lines",
            values(change),
            numbered("layer", len(layers)),
        ),
        Panel(
            "reconstruction error of the write",
            "Mean squared distance of f(write key) from the value to be written, before and after the write.",
            "lines",
            values(errors),
            ("before", "after"),
        ),
        Panel("rate of the write", "beta, from 0 to 1.", "lines", values(rate), ("rate",), "share"),
        Panel(
            "what is read",
            "The values that were read from the memory.",
            "heat",
            values(trace.after.read),
            numbered("value", core.memory_size),
            "signed",
        ),
    ]
