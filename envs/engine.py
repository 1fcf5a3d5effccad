"""The batched engine: N copies of one world, stepped together in compiled code.

A world is a NamedTuple of arrays (its state, leading axis N), a NamedTuple of numbers (its parameters) and rules for
one copy, from which loops.py makes the two loops over a batch. The state always holds `random` (uint64 [N], see
randomness.py) and `over` (bool [N], the episode has ended; the engine writes it).

Autoreset is Gymnasium's NEXT_STEP mode: where `over` is set, a step ignores the action, starts the next episode and
reports reward 0. All N observations are written, so callers can hand in parts of a preallocated unroll.
"""

import hashlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import error, spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ..base.messages import check_integer, check_keys
from .arrays import Array
from .drawing import Canvas
from .loops import Loops
from .player_help import PlayerHelp
from .randomness import streams

HIDDEN = ("num_envs", "first_index", "render_mode")
"""Parameters of every batch, which say nothing of the world."""


class BatchedEnv(VectorEnv[Array, Array, Array]):
    """N copies of a compiled game behind Gymnasium's vector interface.

    Args:
        num_envs: how many copies, at least 1.
        observation_space, action_space: spaces of one copy.
        state: NamedTuple of arrays [num_envs, ...] with fields `random` and `over`.
        params: NamedTuple of numbers that the compiled functions read.
        first_index: index of the first copy in a larger batch that is split over several engines.
        render_mode: None or "rgb_array".
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's own attribute)
        "autoreset_mode": AutoresetMode.NEXT_STEP,
        "render_modes": ["rgb_array"],
        "render_fps": 8,
    }
    episode_fields: ClassVar[tuple[str, ...]] = ()
    """State fields that describe an episode once it has ended; they are reported in `info`."""
    level_fields: ClassVar[tuple[str, ...]] = ()
    """Those that say how hard the level was and were settled before it was played; results are split by them."""
    fact_values: Mapping[str, tuple[str, ...]] = {}
    """Facts that a study of a memory may ask for: by name, what the values 0, 1, .. mean; nothing where they count."""
    level_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of a level, in the form that `level` returns and `set_level` takes."""
    drawn_keys: ClassVar[tuple[str, ...]] = ()
    """Those of them that may be missing; the world then draws what they would say."""
    action_names: ClassVar[tuple[str, ...]] = ()
    replayable: bool = True
    """Whether a level depends on `streams` alone, whichever copy plays it."""
    trusted: bool = False
    """Whether `restore` may run code from a saved state; it has none of this engine's."""
    loops: ClassVar[Loops]

    def __new__(cls, *arguments: Any, **parameters: Any) -> Any:
        """Names and the number of copies are checked before a constructor allocates anything."""
        name = cls.__name__.removesuffix("Batch")
        check_keys(name, "parameter", parameters, (*parameter_names(cls), *HIDDEN))
        if arguments or "num_envs" in parameters:
            check_integer("num_envs", arguments[0] if arguments else parameters["num_envs"], 1, None)
        return super().__new__(cls)

    def __init__(
        self,
        num_envs: int,
        *,
        observation_space: spaces.Box,
        action_space: spaces.Discrete,
        state: Any,
        params: NamedTuple,
        first_index: int,
        render_mode: str | None,
    ) -> None:
        check_integer("first_index", first_index, 0, None)
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; allowed: None, 'rgb_array'")
        self.num_envs = num_envs
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self.state = state
        self.params = params
        self.first_index = first_index
        self.render_mode = render_mode
        self.started = False
        self._num_actions = int(action_space.n)
        self._observation_shape, self._observation_dtype = observation_space.shape, observation_space.dtype
        self._seed_streams(int(np.random.SeedSequence().generate_state(1, np.uint64)[0]))

    # -- the fast path: caller's arrays ------------------------------------------------------------------------------

    def reset_into(
        self, observation: Array, seed: int | Sequence[int | None] | None = None, mask: Array | None = None
    ) -> None:
        """Start episodes where `mask` (bool [N], default everywhere) and write all observations [N, ...]."""
        if seed is not None:
            self._seed_streams(seed)
        if mask is None:
            mask = np.ones(self.num_envs, np.bool_)
        elif not self.started:
            raise error.ResetNeeded("reset of some copies before the first reset(): reset all of them first")
        self._check_array("reset_mask", mask, (), np.bool_)
        self._check_array("observation", observation, self._observation_shape, self._observation_dtype)
        self.loops.reset(self.state, self.params, mask, observation)
        self.started = True

    def step_into(self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array) -> None:
        """Step all copies; write observation [N, ...], reward float32 [N], terminated and truncated bool [N]."""
        if not self.started:
            raise error.ResetNeeded("step() before reset(): call reset() first")
        if actions.dtype != np.int64:
            if not np.issubdtype(actions.dtype, np.integer):
                raise ValueError(f"actions have dtype {actions.dtype}; expected integers")
            actions = actions.astype(np.int64)
        self._check_array("actions", actions, (), np.int64)
        self._check_array("observation", observation, self._observation_shape, self._observation_dtype)
        self._check_array("reward", reward, (), np.float32)
        self._check_array("terminated", terminated, (), np.bool_)
        self._check_array("truncated", truncated, (), np.bool_)
        ends = terminated, truncated
        bad = self.loops.step(self.state, self.params, self._num_actions, actions, observation, reward, *ends)
        if bad >= 0:
            allowed = f"0..{self._num_actions - 1} {self.action_names}"
            raise ValueError(f"action {int(actions[bad])} for environment {bad}; allowed: {allowed}")

    @property
    def streams(self) -> Array:
        """The state of each copy's stream of randomness, uint64 [N], to be written to: levels are drawn from it."""
        return self.state.random

    def cut(self, where: Array) -> None:
        """End the episodes of copies `where` (bool [N]) here: their next step begins new ones."""
        self.state.over[where] = True

    def episode_facts(self, indices: Array) -> Array:
        """Values of `episode_fields` in copies `indices` [K]: float32 [K, len(episode_fields)]."""
        columns = [getattr(self.state, name)[indices] for name in self.episode_fields]
        return np.stack(columns, axis=1).astype(np.float32) if columns else np.zeros((len(indices), 0), np.float32)

    def save(self) -> dict[str, Array]:
        """A copy of the exact state of all copies, randomness included: arrays by name."""
        return {name: np.copy(value) for name, value in self.state._asdict().items()} | {
            "started": np.array(self.started),
            "parameters": self._fingerprint(),
        }

    def restore(self, saved: dict[str, Array]) -> None:
        """Return to a state made by `save` of an engine with the same parameters and number of copies."""
        fields: dict[str, Array] = self.state._asdict()
        for name, value in fields.items():
            found = saved.get(name)
            if found is None or found.shape != value.shape or found.dtype != value.dtype:
                said = "nothing" if found is None else f"an array of {found.dtype} {found.shape}"
                raise ValueError(f"saved state of {name!r} is {said}; expected {value.dtype} {value.shape}")
        if "parameters" in saved and not np.array_equal(saved["parameters"], self._fingerprint()):
            raise ValueError(f"the saved state is of a {type(self).__name__} with other parameters")
        for name, value in fields.items():
            value[...] = saved[name]
        self.started = bool(saved["started"])

    # -- Gymnasium's vector interface --------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Gymnasium's reset.

        Args:
            seed: one for all copies, or one for each.
            options: `{"reset_mask": bool [N]}` resets some copies only; `{"level": [...]}` starts copies with given
                levels: N of them in the form of `level`, None where one is to be drawn.
        """
        mask, levels = self._read(options)
        observation = self.new_observation()
        self.reset_into(observation, seed, mask)
        for index, level in enumerate(levels):
            if level is not None:
                self.set_level(index, level)
        return (self.observe_all() if levels else observation), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Gymnasium's step; `info` holds the episode fields of copies whose episode ended in this step."""
        observation = self.new_observation()
        reward = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        self.step_into(np.asarray(actions), observation, reward, terminated, truncated)
        ended = terminated | truncated
        info: dict[str, Any] = {}
        if ended.any():
            for name in self.episode_fields:
                info[name], info[f"_{name}"] = np.where(ended, getattr(self.state, name), 0), ended
        return observation, reward, terminated, truncated, info

    def observe(self, index: int) -> Array:
        """The current observation of copy `index`, e.g. after `set_level`."""
        return self.observe_all()[index]

    def observe_all(self) -> Array:
        """The current observations of all copies."""
        self._check_started("an observation")
        observation = self.new_observation()
        self.loops.reset(self.state, self.params, np.zeros(self.num_envs, np.bool_), observation)
        return observation

    def new_observation(self) -> Array:
        """An empty array for the observations of all copies."""
        space = self.single_observation_space
        return np.zeros((self.num_envs, *space.shape), space.dtype)  # pyright: ignore

    def render(self) -> tuple[Array, ...] | None:
        """Pictures of all copies, uint8 [H, W, 3] each, in render_mode "rgb_array"."""
        return None if self.render_mode is None else tuple(self.draw(i) for i in range(self.num_envs))

    def draw(self, index: int, full: bool = True) -> Array:
        """A picture of copy `index`, uint8 [H, W, 3]: the whole board, or only what the agent sees."""
        return self.paint(index, full).picture()

    def set_level(self, index: int, level: Mapping[str, Any]) -> None:
        """Start an episode of a given level, in the form of `level`, in copy `index`; reset() comes first.

        Raises ValueError naming what is wrong with a level; then copy `index` is as it was.
        """
        self._check_started("set_level()")
        check_integer("index", index, 0, self.num_envs - 1)
        self.check_level("level", level)
        self.place_level(index, level)
        self.state.over[index] = False

    def check_level(self, name: str, level: Any) -> None:
        """Raise ValueError unless `level` is a dict with the keys of a level."""
        if not isinstance(level, Mapping):
            raise ValueError(f"{name} is {level!r}; expected a dict with the keys {', '.join(self.level_keys)}")
        check_keys(name, "key", level, self.level_keys)
        for key in self.level_keys:
            if key not in level and key not in self.drawn_keys:
                raise ValueError(f"{name} has no {key!r}; expected the keys {', '.join(self.level_keys)}")

    # -- what a world adds -------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Array]:
        """Facts of level and moment in all copies, shown to the agent or not: int64 [N] for each `fact_values`."""
        return {}

    def player_help(self) -> PlayerHelp:
        """The world explained to a person who plays it."""
        raise NotImplementedError

    def paint(self, index: int, full: bool = True) -> Canvas:
        """Copy `index` for people: the whole board, or only what the agent sees."""
        raise NotImplementedError

    def level(self, index: int) -> dict[str, Any]:
        """The level that copy `index` is playing, in the form that `set_level` takes."""
        raise NotImplementedError

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        """Check the values of a level and put copy `index` at its start; the keys are known to be `level_keys`."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------------------------

    def _read(self, options: Mapping[str, Any] | None) -> tuple[Array | None, Sequence[Any]]:
        """Mask and levels of the options of a reset."""
        given = {} if options is None else options
        check_keys("reset", "option", given, ("level", "reset_mask"))
        mask = np.asarray(given["reset_mask"]) if "reset_mask" in given else None
        levels: Any = given.get("level", ())
        if "level" in given:
            if not isinstance(levels, list | tuple) or len(levels) != self.num_envs:
                said = f"{len(levels)} levels" if isinstance(levels, list | tuple) else f"a {type(levels).__name__}"
                raise ValueError(f"level is {said}; expected a list of {self.num_envs}, with None for drawn ones")
            for index, level in enumerate(levels):
                if level is not None:
                    self.check_level(f"level of environment {index}", level)
                    if mask is not None and not mask[index]:
                        raise ValueError(f"level of environment {index} is given, but reset_mask leaves it out")
        return mask, levels

    def _check_started(self, call: str) -> None:
        if not self.started:
            raise error.ResetNeeded(f"{call} before reset(): call reset() first")

    def _fingerprint(self) -> Array:
        """A hash of the parameters, uint8 [16]. The first index only says which of the graphs a copy plays."""
        summary = hashlib.sha256(type(self).__name__.encode())
        for value in _leaves(self.params):
            summary.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        return np.frombuffer(summary.digest()[:16], np.uint8)

    def _seed_streams(self, seed: int | Sequence[int | None]) -> None:
        if isinstance(seed, Sequence | np.ndarray):
            if len(seed) != self.num_envs:
                raise ValueError(f"{len(seed)} seeds for {self.num_envs} environments; give one seed, or one for each")
            for i, one in enumerate(seed):
                if one is not None:
                    check_integer(f"seed of environment {i}", one, 0, None)
                    self.state.random[i] = streams(int(one), range(1))[0]
        else:
            check_integer("seed", seed, 0, None)
            self.state.random[:] = streams(int(seed), range(self.first_index, self.first_index + self.num_envs))

    def _check_array(self, name: str, array: Array, shape: tuple[int, ...], dtype: Any) -> None:
        """Compiled code trusts its arrays, so their shapes and dtypes are checked before every call."""
        if array.shape != (self.num_envs, *shape) or array.dtype != dtype:
            expected = f"{np.dtype(dtype)} {(self.num_envs, *shape)}"
            raise ValueError(f"{name} is an array of {array.dtype} {array.shape}; expected {expected}")


def parameter_names(batch_class: type[BatchedEnv]) -> list[str]:
    """The parameters of a world, without those that every batch has."""
    return [name for name in inspect.signature(batch_class).parameters if name not in HIDDEN]


def _leaves(params: Any) -> Iterable[Any]:
    """The values of (nested) NamedTuples, without `first_index`."""
    for name, value in params._asdict().items():
        if hasattr(value, "_asdict"):
            yield from _leaves(value)
        elif name != "first_index":
            yield value
