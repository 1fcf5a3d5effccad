"""The two loops over a batch of copies of a world, made from its rules for one copy.

`start`, `advance` and `observe` below stand for a world's own; `batch_loops` puts those in their places.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from ..base.compiled import kernel
from .arrays import Array, first_outside


def start(state: Any, params: Any, i: int) -> None:
    """Begin a new episode in copy i."""


def advance(state: Any, params: Any, i: int, action: int) -> tuple[float, bool, bool]:
    """Take one step in copy i: (reward, terminated, truncated)."""
    raise NotImplementedError


def observe(state: Any, params: Any, i: int, observation: Array) -> None:
    """Write what the agent of copy i sees, every number of it."""


class Loops(NamedTuple):
    """The loops of one world, compiled."""

    reset: Callable[..., None]
    """reset(state, params, mask, observation): see `_reset_batch`."""
    step: Callable[..., int]
    """step(state, params, num_actions, actions, observation, reward, terminated, truncated): see `_step_batch`."""


def batch_loops(
    start: Callable[..., None], advance: Callable[..., tuple[float, bool, bool]], observe: Callable[..., None]
) -> Loops:
    """The loops over a batch of the world whose rules are these three kernels."""
    rules = {"start": start, "advance": advance, "observe": observe}
    return Loops(*(_with_rules(loop, rules, start.__module__) for loop in (_reset_batch, _step_batch)))


def _with_rules(loop: Any, rules: dict[str, Any], module: str) -> Any:
    """`loop` compiled with a world's rules for its globals, and kept on disk under the name of the world's module.

    Globals, since numba never finds compiled closures over functions again on disk.
    """
    made = FunctionType(loop.__code__, globals() | rules, loop.__name__)
    made.__module__, made.__qualname__ = module, f"{module.replace('.', '_')}{loop.__name__}"
    return kernel(made)


def _reset_batch(state: Any, params: Any, mask: Array, observation: Array) -> None:
    """Start an episode where `mask` (bool [N]) is set, and observe all copies (observation [N, ...])."""
    for i in range(len(mask)):
        if mask[i]:
            start(state, params, i)
            state.over[i] = False
        observe(state, params, i, observation[i])


def _step_batch(
    state: Any,
    params: Any,
    num_actions: int,
    actions: Array,
    observation: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
) -> int:
    """Step all copies; -1, or the index of the first action outside 0..num_actions - 1, and then nothing has changed.

    actions int64 [N]; observation [N, ...], reward float32 [N], terminated and truncated bool [N] are written.
    """
    bad = first_outside(actions, num_actions)
    if bad >= 0:
        return bad
    for i in range(len(actions)):
        if state.over[i]:
            start(state, params, i)
            state.over[i] = False
            reward[i], terminated[i], truncated[i] = 0.0, False, False
        else:
            reward[i], terminated[i], truncated[i] = advance(state, params, i, actions[i])
            state.over[i] = terminated[i] or truncated[i]
        observe(state, params, i, observation[i])
    return -1
