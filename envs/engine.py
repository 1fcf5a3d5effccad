"""The engine of compiled environments: N instances with Gymnasium's vector interface.

An environment is a NamedTuple of arrays (`State`, leading axis N), a NamedTuple of scalars (`Params`, the constructor's
arguments in the form that compiled functions use) and rules for one environment, which `batch_loops` compiles into
loops in place of `start`, `advance` and `observe` below. The state always contains `random` (uint64 [N], see
randomness.py) and `over` (bool [N], the episode has ended; written by the loops).
"""

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import error, spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array

from ..base.compiled import kernel
from ..base.errors import check_choice, check_integer, check_keys, check_whole
from .arrays import KEY, Array, fingerprint
from .drawing import Canvas, Color
from .randomness import streams

HIDDEN = ("num_envs", "first_index", "render_mode")  # Parameters of every batch, independent of the environment


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


class BatchedEnv(VectorEnv[Array, Array, Array]):
    """N instances of a compiled environment: Gymnasium's vector interface, and that of actors (BatchedEnvironment).

    Args:
        observation_space: space of one environment; the actions are `action_names`.
        state: NamedTuple of arrays [num_envs, ...] with fields `random` and `over`.
        params: NamedTuple of scalars that the compiled functions read.
        first_index: index of the first environment in a larger batch that is split over several engines.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's own attribute)
        "autoreset_mode": AutoresetMode.NEXT_STEP,
        "render_modes": ["rgb_array"],
        "render_fps": 8,
    }
    loops: ClassVar[Loops]
    action_names: tuple[str, ...] = ()
    episode_fields: tuple[str, ...] = ()  # State fields that describe an episode that has ended, reported in `info`
    level_fields: ClassVar[tuple[str, ...]] = ()
    """Episode fields that describe the level's difficulty, known before the episode; results are split by them."""
    fact_values: Mapping[str, tuple[str, ...]] = {}
    """Facts for studies of memory: by name, the meanings of the values 0, 1, ...; empty for a count."""
    level_keys: ClassVar[tuple[str, ...]] = ()  # Keys of a level, as `level` returns and `set_level` accepts it
    sampled_keys: ClassVar[tuple[str, ...]] = ()  # Optional keys of a level; missing values are sampled
    map_shape: tuple[int, int] | None = None
    """Rows and columns of the map that `mark_seen` fills; None for an environment without a map."""
    map_classes: tuple[int, ...] = ()  # Number of classes of each layer of the map
    replayable: bool = True  # Whether a level depends only on `streams`, not on the environment's index
    fixed_levels: int = 0  # If environment i always plays level i modulo a number: this number
    evaluation_args: Mapping[str, Any] = {}  # Arguments that evaluations use by default, such as the split of levels
    trusted: bool = False  # Whether `restore` may run code from a saved state; states of this engine contain no code
    symbols: ClassVar[tuple[tuple[Color, str], ...]] = ()  # Colors of the board and their meaning, for human players

    def __new__(cls, *arguments: Any, **parameters: Any) -> Any:
        """Check the names of parameters and the number of environments before a constructor allocates anything."""
        allowed = *parameter_names(cls), *HIDDEN[len(arguments) :]
        check_keys(cls.__name__.removesuffix("Batch"), "parameter", parameters, allowed)
        check_integer("num_envs", arguments[0] if arguments else parameters.get("num_envs"), 1, None)
        return super().__new__(cls)

    def __init__(
        self,
        num_envs: int,
        *,
        observation_space: spaces.Box,
        state: Any,
        params: NamedTuple,
        first_index: int = 0,
        render_mode: str | None = None,
    ) -> None:
        check_integer("first_index", first_index, 0, None)
        check_choice("render_mode", render_mode, (None, "rgb_array"))
        self.num_envs, self.first_index, self.render_mode = num_envs, first_index, render_mode
        self.state, self.params = state, params
        self.single_observation_space = observation_space
        self.single_action_space = spaces.Discrete(len(self.action_names))
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.started = False
        entropy = int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
        self._seed_streams(entropy, np.ones(num_envs, np.bool_))

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Reset environments: `seed` is one seed, or one for each; `options={"reset_mask": bool [N]}` resets some."""
        values = options or {}
        check_keys("reset", "option", values, ("reset_mask",))
        mask = np.asarray(values.get("reset_mask", np.ones(self.num_envs, np.bool_)))
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise ValueError(f"reset_mask is an array of {mask.dtype} {mask.shape}; expected bool ({self.num_envs},)")
        if not mask.all():
            self._check_started("a reset of some environments")
        observation = self.new_observation()
        self.reset_into(observation, seed, mask)
        return observation, self._masks()

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step all environments; `info` contains the episode fields of episodes that ended."""
        observation = self.new_observation()
        reward = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        self.step_into(np.asarray(actions), observation, reward, terminated, truncated)
        ended = terminated | truncated
        info = self._masks()
        if ended.any():
            for name in self.episode_fields:
                info[name], info[f"_{name}"] = np.where(ended, getattr(self.state, name), 0), ended
        return observation, reward, terminated, truncated, info

    def render(self) -> tuple[Array, ...] | None:
        """Return images of all environments, uint8 [H, W, 3] each; None unless render_mode is "rgb_array"."""
        return None if self.render_mode is None else tuple(self.draw(i) for i in range(self.num_envs))

    def draw(self, index: int, full: bool = True) -> Array:
        """Return an image of environment `index`, uint8 [H, W, 3]: the full board, or only what the agent observes."""
        return self.paint(index, full).image()

    # -- the interface of actors, see arrays.py ----------------------------------------------------------------------

    def new_observation(self) -> Array:
        return create_empty_array(self.single_observation_space, self.num_envs)  # pyright: ignore

    def reset_into(
        self, observation: Array, seed: int | Sequence[int | None] | None = None, mask: Array | None = None
    ) -> None:
        """Start episodes where `mask` (bool [N], by default everywhere) is set, with new random streams unless `seed`
        is None; write all observations [N, ...]."""
        mask = np.ones(self.num_envs, np.bool_) if mask is None else mask
        if seed is not None:
            self._seed_streams(seed, mask)
        self.loops.reset(self.state, self.params, mask, observation)
        self.started = True

    def step_into(self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array) -> None:
        """Step all environments; write observation [N, ...], reward float32 [N], terminated and truncated bool [N]."""
        self._check_started("step()")
        if np.issubdtype(actions.dtype, np.integer):
            actions = actions.astype(np.int64, copy=False)
        if actions.shape != (self.num_envs,) or actions.dtype != np.int64:
            expected = f"integers ({self.num_envs},)"
            raise ValueError(f"actions is an array of {actions.dtype} {actions.shape}; expected {expected}")
        num_actions, ends = len(self.action_names), (terminated, truncated)
        bad = self.loops.step(self.state, self.params, num_actions, actions, observation, reward, *ends)
        if bad >= 0:
            raise ValueError(f"action {actions[bad]} for environment {bad}; allowed: 0..{num_actions - 1}")

    @property
    def streams(self) -> Array:
        """State of each environment's random stream, from which its levels are sampled: uint64 [N], writable."""
        return self.state.random

    @property
    def action_mask(self) -> Array | None:
        """bool [N, num_actions]: the valid actions of the current step; None for an environment without masks."""
        return None

    def cut(self, where: Array) -> None:
        self.state.over[where] = True

    def episode_facts(self, indices: Array) -> Array:
        columns = [getattr(self.state, name)[indices] for name in self.episode_fields]
        return np.array(columns, np.float32).reshape(len(columns), len(indices)).T

    def save(self) -> dict[str, Array]:
        arrays = {name: np.copy(value) for name, value in self.state._asdict().items()}
        return arrays | {"started": np.array(self.started), "parameters": fingerprint(type(self).__name__, self.params)}

    def restore(self, saved: dict[str, Array]) -> None:
        fields: dict[str, Array] = self.state._asdict()
        for name, value in fields.items():
            if saved[name].shape != value.shape:
                raise ValueError(f"saved state of {name!r} has shape {saved[name].shape}; expected {value.shape}")
        if not np.array_equal(saved["parameters"], fingerprint(type(self).__name__, self.params)):
            raise ValueError(f"the saved state is of a {type(self).__name__} with different parameters")
        for name, value in fields.items():
            value[...] = saved[name]
        self.started = bool(saved["started"])

    def observe_all(self) -> Array:
        """Return the current observations of all environments, e.g. after `set_level`."""
        self._check_started("an observation")
        observation = self.new_observation()
        self.loops.reset(self.state, self.params, np.zeros(self.num_envs, np.bool_), observation)
        return observation

    def set_level(self, index: int, level: Mapping[str, Any]) -> None:
        """Start an episode of this level, in the form of `level`, in environment `index`; call reset() first. For an
        invalid level, raise ValueError naming the error and leave the environment unchanged."""
        self._check_started("set_level()")
        check_integer("index", index, 0, self.num_envs - 1)
        try:
            check_keys("level", "key", level, self.level_keys)
            for key in self.level_keys:
                if key not in level and key not in self.sampled_keys:
                    raise ValueError(f"level has no {key!r}; expected the keys {', '.join(self.level_keys)}")
            self.place_level(index, level)
        except TypeError as problem:  # such as a number where a list is expected
            expected = f"expected values as in {reprlib.repr(self.level(index))}"
            raise ValueError(f"level is {level!r}: {problem}; {expected}") from None
        self.state.over[index] = False

    def level_set(self) -> set[bytes]:
        """Return a key for each level that may be sampled; an empty set if there are too many for levels to repeat."""
        return set()

    # -- overridden by environments ------------------------------------------------------------------------------------

    def fact_columns(self) -> Sequence[Array]:
        """Return the facts of `facts`, integers or bool [N], in the order of `fact_values`."""
        return ()

    def facts(self) -> dict[str, Array]:
        """Return facts of the level and the current step, observed or not: int64 [N] for each key of `fact_values`."""
        columns = zip(self.fact_values, self.fact_columns(), strict=True)
        return {name: np.array(column, np.int64) for name, column in columns}

    @property
    def privileged_size(self) -> int:
        """Number of values that `privileged` returns for each environment."""
        return len(self.fact_values)

    def privileged(self) -> Array:
        """Return a privileged critic's additional inputs, float32 [N, privileged_size]: by default, the facts."""
        return np.stack(list(self.facts().values()), 1).astype(np.float32)

    def mark_seen(self, seen: Array) -> Array:
        """Write the current observations into maps of the episodes, `seen` (uint8 [N, *map_shape, layers]: 0 for an
        unobserved cell, else 1 + its class in the layer); return the agents' cells, int64 [N, 2]."""
        raise NotImplementedError

    def paint(self, index: int, full: bool = True) -> Canvas:
        """Paint environment `index` for human viewers: the full board, or only what the agent observes."""
        raise NotImplementedError

    def level(self, index: int) -> dict[str, Any]:
        """Return the current level of environment `index`, in the form that `set_level` accepts."""
        raise NotImplementedError

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        """Check the values of a level, whose keys are `level_keys`, and start it in environment `index`."""
        raise NotImplementedError

    def _masks(self) -> dict[str, Any]:
        mask = self.action_mask
        return {} if mask is None else {KEY: mask, f"_{KEY}": np.ones(self.num_envs, np.bool_)}

    def _check_started(self, call: str) -> None:
        if not self.started:
            raise error.ResetNeeded(f"{call} before reset(): call reset() first")

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


def parameter_names(batch_class: type[BatchedEnv]) -> list[str]:
    """Return the names of an environment's own parameters, without those that every batch has."""
    return [name for name in inspect.signature(batch_class).parameters if name not in (*HIDDEN, "batch")]
