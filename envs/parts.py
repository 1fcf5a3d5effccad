"""Parts of environments: compiled loops over a batch, timeouts in frames, observations of binary planes, one for each
character of a board, of which exactly one is set in every cell, and maps of the observed cells, for `--predict map`.

An environment is a NamedTuple of arrays (`State`, leading axis N), a NamedTuple of scalars (`Params`, the constructor's
arguments in the form that compiled functions use) and rules for one environment. `batch_loops` compiles loops that step
N environments of one kind together in Gymnasium's NEXT_STEP mode, with these rules in place of `start`, `advance` and
`observe` below. The state always contains `random` (uint64 [N], see randomness.py) and `over` (bool [N], the episode
has ended; written by the loops).
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from ..base.compiled import kernel
from ..base.errors import check_integer
from .arrays import Array

NEVER = 2**62  # A frame that is never reached
REACH = 6  # Cells of a map on each side of the agent
SIDE = 2 * REACH + 1


def start(state: Any, params: Any, i: int) -> None:
    """Begin a new episode in environment i."""


def advance(state: Any, params: Any, i: int, action: int) -> tuple[float, bool, bool]:
    """Step environment i; return (reward, terminated, truncated)."""
    raise NotImplementedError


def observe(state: Any, params: Any, i: int, observation: Array) -> None:
    """Write the complete observation of environment i."""


class Loops(NamedTuple):
    reset: Callable[..., None]  # As _reset_batch
    step: Callable[..., int]  # As _step_batch


def batch_loops(
    start: Callable[..., None], advance: Callable[..., tuple[float, bool, bool]], observe: Callable[..., None]
) -> Loops:
    """Compile the loops over a batch of an environment whose rules are these three kernels."""

    def with_rules(loop: Any) -> Any:
        """Compile `loop` with the rules as globals, and cache it under their name: numba caches no closures."""
        scope = globals() | {"start": start, "advance": advance, "observe": observe}
        made = FunctionType(loop.__code__, scope, loop.__name__)
        name = f"{advance.__module__}.{advance.__name__}{loop.__name__}"
        made.__module__, made.__qualname__ = advance.__module__, name.replace(".", "_")
        return kernel(made)

    return Loops(with_rules(_reset_batch), with_rules(_step_batch))


def _reset_batch(state: Any, params: Any, mask: Array, observation: Array) -> None:
    """Start an episode where `mask` (bool [N]) is set, and observe all environments (observation [N, ...])."""
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
    """Step all environments and return -1. If an action is outside 0..num_actions - 1, return the first such action's
    index and change nothing. Actions are int64 [N]; where `over` is set, a step ignores the action and starts the next
    episode. Observation [N, ...], reward float32 [N], terminated and truncated bool [N] are written."""
    for i in range(len(actions)):
        if actions[i] < 0 or actions[i] >= num_actions:
            return i
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


def last_frame(timeout_frames: int) -> int:
    """Return the last frame of an episode: NEVER for -1. Raises ValueError for any other value below 1."""
    check_integer("timeout_frames", timeout_frames, -1, None)
    if timeout_frames == 0:
        raise ValueError("timeout_frames is 0; allowed: -1 (no timeout), or at least 1")
    return timeout_frames if timeout_frames > 0 else NEVER


@kernel
def put(planes: Array, row: int, col: int, over: int, plane: int) -> None:
    """Change a cell of `planes` [rows, cols, K] from plane `over` to plane `plane`."""
    planes[row, col, over] = 0
    planes[row, col, plane] = 1


@kernel
def paint(planes: Array, row: int, col: int, height: int, width: int, over: int, plane: int) -> None:
    """Change a rectangle of cells from plane `over` to plane `plane`."""
    for r in range(row, row + height):
        for c in range(col, col + width):
            put(planes, r, c, over, plane)


def around(seen: Array, agents: Array) -> Array:
    """Return the cells of `seen`, uint8 [N, rows, columns, L], around each agent [N, 2]: uint8 [N, SIDE, SIDE, L]."""
    padded = np.pad(seen, ((0, 0), (REACH, REACH), (REACH, REACH), (0, 0)))
    return padded[_window(padded, agents + REACH, REACH)]


def mark_window(seen: Array, shown: Array, agents: Array, reach: int) -> None:
    """Copy the cells at most `reach` from each agent [N, 2] from `shown` to `seen` (both [N, rows, columns, L])."""
    index = _window(shown, agents, reach)
    seen[index] = shown[index]


def _window(cells: Array, agents: Array, reach: int) -> tuple[Array, Array, Array]:
    """Indices of the cells at most `reach` from each agent [N, 2], inside `cells` [N, rows, columns, L]."""
    steps = np.arange(-reach, reach + 1)
    row, column = (np.clip(agents[:, axis, None] + steps, 0, cells.shape[1 + axis] - 1) for axis in (0, 1))
    return np.arange(len(agents))[:, None, None], row[:, :, None], column[:, None, :]
