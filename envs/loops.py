"""N environments of one kind in arrays, and the two compiled loops that step them together.

An environment is a NamedTuple of arrays (its state, leading axis N), a NamedTuple of scalars (its parameters) and rules
for one environment. `batch_loops` compiles the loops with the environment's rules in place of the `start`, `advance`
and `observe` below. The state always contains `random` (uint64 [N], see randomness.py) and `over` (bool [N], the
episode has ended; written by the loops).

Autoreset is Gymnasium's NEXT_STEP mode: where `over` is set, a step ignores the action, starts the next episode and
returns reward 0. All N observations are written, so callers can pass slices of a preallocated unroll.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import error

from ..base.compiled import kernel
from ..base.messages import check_integer, check_whole
from .arrays import Array
from .randomness import streams


def start(state: Any, params: Any, i: int) -> None:
    """Begin a new episode in environment i."""


def advance(state: Any, params: Any, i: int, action: int) -> tuple[float, bool, bool]:
    """Step environment i; return (reward, terminated, truncated)."""
    raise NotImplementedError


def observe(state: Any, params: Any, i: int, observation: Array) -> None:
    """Write the complete observation of environment i."""


class Loops(NamedTuple):
    """Compiled loops of one environment."""

    reset: Callable[..., None]  # reset(state, params, mask, observation): see `_reset_batch`
    step: Callable[..., int]
    """step(state, params, num_actions, actions, observation, reward, terminated, truncated): see `_step_batch`."""


def batch_loops(
    start: Callable[..., None], advance: Callable[..., tuple[float, bool, bool]], observe: Callable[..., None]
) -> Loops:
    """Compile the loops over a batch of an environment whose rules are these three kernels."""
    rules = {"start": start, "advance": advance, "observe": observe}
    return Loops(*(_with_rules(loop, rules) for loop in (_reset_batch, _step_batch)))


def _with_rules(loop: Any, rules: dict[str, Any]) -> Any:
    """Compile `loop` with an environment's rules as globals, and cache it on disk under their name. (numba does not
    cache closures over functions on disk.)"""
    made, advance = FunctionType(loop.__code__, globals() | rules, loop.__name__), rules["advance"]
    name = f"{advance.__module__}.{advance.__name__}{loop.__name__}"
    made.__module__, made.__qualname__ = advance.__module__, name.replace(".", "_")
    return kernel(made)


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
    index and change nothing. Actions are int64 [N]; observation [N, ...], reward float32 [N], terminated and truncated
    bool [N] are written."""
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


@kernel
def first_outside(values: Array, n: int) -> int:
    """Return the index of the first of `values` (int64 [N]) outside 0..n-1, or -1."""
    for i in range(len(values)):
        if values[i] < 0 or values[i] >= n:
            return i
    return -1


MOST_NAMES = 10  # Maximum number of actions that an error names; more are shown as a range


class ArrayForm(NamedTuple):
    """Shape and type of one environment's part of an array."""

    shape: tuple[int, ...]
    dtype: Any


class Copies:
    """N environments of one kind: their state, and batched operations on the caller's arrays.

    Args:
        num_envs: N, at least 1.
        observation: form of one environment's observation.
        num_actions: number of actions of one environment.
        state: NamedTuple of arrays [num_envs, ...] with fields `random` and `over`.
        params: NamedTuple of scalars that the compiled functions read.
        first_index: index of the first environment in a larger batch that is split over several engines.
    """

    episode_fields: tuple[str, ...] = ()
    """State fields that describe an episode once it has ended; they are reported in `info`."""
    later_fields: ClassVar[tuple[str, ...]] = ()
    """State fields that older versions did not save; a missing field becomes 0."""
    action_names: tuple[str, ...] = ()
    loops: ClassVar[Loops]

    def __init__(
        self, num_envs: int, observation: ArrayForm, num_actions: int, state: Any, params: NamedTuple, first_index: int
    ) -> None:
        check_integer("first_index", first_index, 0, None)
        self.num_envs = num_envs
        self.state = state
        self.params = params
        self.first_index = first_index
        self.started = False
        self._observation, self._num_actions = observation, num_actions
        self._seed_streams(int(np.random.SeedSequence().generate_state(1, np.uint64)[0]), np.ones(num_envs, np.bool_))

    def reset_into(
        self, observation: Array, seed: int | Sequence[int | None] | None = None, mask: Array | None = None
    ) -> None:
        """Start episodes where `mask` (bool [N], by default everywhere) is set, with new random streams unless `seed`
        is None; write all observations [N, ...]."""
        if mask is None:
            mask = np.ones(self.num_envs, np.bool_)
        elif not self.started:
            raise error.ResetNeeded("reset of some environments before the first reset(): reset all of them first")
        self._check_array("reset_mask", mask, (), np.bool_)
        self._check_array("observation", observation, *self._observation)
        if seed is not None:
            self._seed_streams(seed, mask)
        self.loops.reset(self.state, self.params, mask, observation)
        self.started = True

    def step_into(self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array) -> None:
        """Step all environments; write observation [N, ...], reward float32 [N], terminated and truncated bool [N]."""
        self._check_started("step()")
        if actions.dtype != np.int64:
            if not np.issubdtype(actions.dtype, np.integer):
                raise ValueError(f"actions have dtype {actions.dtype}; expected integers")
            actions = actions.astype(np.int64)
        self._check_array("actions", actions, (), np.int64)
        self._check_array("observation", observation, *self._observation)
        self._check_array("reward", reward, (), np.float32)
        self._check_array("terminated", terminated, (), np.bool_)
        self._check_array("truncated", truncated, (), np.bool_)
        ends = terminated, truncated
        bad = self.loops.step(self.state, self.params, self._num_actions, actions, observation, reward, *ends)
        if bad >= 0:
            raise ValueError(f"action {int(actions[bad])} for environment {bad}; allowed: {self.allowed_actions}")

    @property
    def allowed_actions(self) -> str:
        """The allowed actions as text, for errors."""
        names = f" {self.action_names}" if len(self.action_names) <= MOST_NAMES else ""
        return f"0..{self._num_actions - 1}{names}"

    @property
    def streams(self) -> Array:
        """State of each environment's random stream, from which its levels are sampled: uint64 [N], writable."""
        return self.state.random

    @property
    def action_mask(self) -> Array | None:
        """bool [N, num_actions]: the valid actions of the current step; None for an environment without masks."""
        return None

    def cut(self, where: Array) -> None:
        """End the current episodes of environments `where` (bool [N]); their next step begins new ones."""
        self.state.over[where] = True

    def episode_facts(self, indices: Array) -> Array:
        """Return the `episode_fields` of environments `indices` [K], float32 [K, len(episode_fields)]."""
        columns = [getattr(self.state, name)[indices] for name in self.episode_fields]
        return np.stack(columns, axis=1).astype(np.float32) if columns else np.zeros((len(indices), 0), np.float32)

    def save(self) -> dict[str, Array]:
        """Return a copy of the exact state of all environments, including random streams: arrays by name."""
        return {name: np.copy(value) for name, value in self.state._asdict().items()} | {
            "started": np.array(self.started),
            "parameters": self._fingerprint(),
        }

    def restore(self, saved: dict[str, Array]) -> None:
        """Restore a state returned by `save` of an engine with the same parameters and number of environments."""
        fields: dict[str, Array] = self.state._asdict()
        for name, value in fields.items():
            result = saved.get(name, np.zeros_like(value) if name in self.later_fields else None)
            if result is None or result.shape != value.shape or result.dtype != value.dtype:
                text = "nothing" if result is None else f"an array of {result.dtype} {result.shape}"
                raise ValueError(f"saved state of {name!r} is {text}; expected {value.dtype} {value.shape}")
        if "parameters" in saved and not np.array_equal(saved["parameters"], self._fingerprint()):
            raise ValueError(f"the saved state is of a {type(self).__name__} with different parameters")
        for name, value in fields.items():
            value[...] = saved.get(name, 0)
        self.started = bool(saved["started"])

    def new_observation(self) -> Array:
        """Allocate an array for the observations of all environments."""
        return np.zeros((self.num_envs, *self._observation.shape), self._observation.dtype)

    def _check_started(self, call: str) -> None:
        if not self.started:
            raise error.ResetNeeded(f"{call} before reset(): call reset() first")

    def _fingerprint(self) -> Array:
        """Hash of the parameters, uint8 [16], without `first_index`, which only selects an environment's graph."""
        summary = hashlib.sha256(type(self).__name__.encode())
        for value in _leaves(self.params):
            summary.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        return np.frombuffer(summary.digest()[:16], np.uint8)

    def _seed_streams(self, seed: int | Sequence[int | None], mask: Array) -> None:
        if isinstance(seed, Sequence | np.ndarray):
            if len(seed) != self.num_envs:
                raise ValueError(f"{len(seed)} seeds for {self.num_envs} environments; give one seed, or one for each")
            for i, value in enumerate(seed):
                if value is not None and mask[i]:
                    check_whole(f"seed of environment {i}", value, 0)
                    self.state.random[i] = streams(int(value), range(1))[0]
        else:
            check_whole("seed", seed, 0)
            states = streams(int(seed), range(self.first_index, self.first_index + self.num_envs))
            self.state.random[mask] = states[mask]

    def _check_array(self, name: str, array: Array, shape: tuple[int, ...], dtype: Any) -> None:
        """Raise ValueError for a wrong shape or dtype, which compiled code would not detect."""
        if array.shape != (self.num_envs, *shape) or array.dtype != dtype:
            expected = f"{np.dtype(dtype)} {(self.num_envs, *shape)}"
            raise ValueError(f"{name} is an array of {array.dtype} {array.shape}; expected {expected}")


def _leaves(params: Any) -> Iterable[Any]:
    """Yield the values of (nested) NamedTuples, except `first_index` and the defaults of parameters added later."""
    defaults = params._field_defaults
    for name, value in params._asdict().items():
        if hasattr(value, "_asdict"):
            yield from _leaves(value)
        elif name != "first_index" and not (name in defaults and value == defaults[name]):
            yield value
