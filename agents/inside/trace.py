"""Recording of every step of a core with hooks: inputs, state before and state after; statistics of the states."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..cores.core import CoreState, map_state, state_leaves

STATE_METRICS = ("state/norm", "state/saturation", "state/effective_rank")
SATURATED = 0.95  # Magnitude from which a value between -1 and 1 is considered saturated
MOST_STATES = 128  # Largest number of evenly spaced states of an episode for the effective rank


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

    handle = core.register_forward_hook(note)  # pyright: ignore[reportUnknownMemberType]
    try:
        yield calls
    finally:
        handle.remove()


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
