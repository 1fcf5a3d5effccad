"""The batched engine: N copies of one game, stepped together in compiled code.

A game is a NamedTuple of arrays (its state, leading axis N), a NamedTuple of numbers (its parameters) and two compiled
functions that loop over the batch:

    reset_batch(state, params, mask, observation)                                    start an episode where mask is set
    step_batch(state, params, actions, observation, reward, terminated, truncated)   -> -1, or the index of a bad action

The state always holds `random` (uint64 [N], see randomness.py) and `over` (bool [N], the episode has ended). Autoreset
is Gymnasium's NEXT_STEP mode: where `over` is set, step_batch ignores the action, starts the next episode and reports
reward 0. Both write every row of `observation`, so callers can hand in slices of a preallocated unroll.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import error, spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ..base.messages import check_integer, check_range
from .arrays import Array
from .drawing import Canvas
from .randomness import streams


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
    action_names: ClassVar[tuple[str, ...]] = ()
    reset_batch: ClassVar[Callable[..., None]]
    step_batch: ClassVar[Callable[..., int]]

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
        check_integer("num_envs", num_envs, 1, None)
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
        type(self).reset_batch(self.state, self.params, mask, observation)
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
        bad = type(self).step_batch(self.state, self.params, actions, observation, reward, terminated, truncated)
        if bad >= 0:
            n = int(self.single_action_space.n)  # pyright: ignore[reportAttributeAccessIssue]
            raise ValueError(
                f"action {int(actions[bad])} for environment {bad}; allowed: 0..{n - 1} {self.action_names}"
            )

    def episode_facts(self, indices: Array) -> Array:
        """What `episode_fields` say of copies `indices` [K]: float32 [K, len(episode_fields)]."""
        columns = [getattr(self.state, name)[indices] for name in self.episode_fields]
        return np.stack(columns, axis=1).astype(np.float32) if columns else np.zeros((len(indices), 0), np.float32)

    def save(self) -> dict[str, Array]:
        """A copy of the exact state of all copies, randomness included: arrays by name."""
        return {name: np.copy(value) for name, value in self.state._asdict().items()} | {
            "started": np.array(self.started)
        }

    def restore(self, saved: dict[str, Array]) -> None:
        """Return to a state made by `save` of an engine with the same parameters and number of copies."""
        for name, value in self.state._asdict().items():
            if name not in saved or saved[name].shape != value.shape:
                found = saved[name].shape if name in saved else "nothing"
                raise ValueError(f"saved state of {name!r} is {found}; expected an array of shape {value.shape}")
            value[...] = saved[name]
        self.started = bool(saved["started"])

    # -- Gymnasium's vector interface --------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Gymnasium's reset; `options={"reset_mask": bool [N]}` resets some copies only."""
        observation = self.new_observation()
        self.reset_into(observation, seed, (options or {}).get("reset_mask"))  # pyright: ignore[reportArgumentType]
        return observation, {}

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
        observation = self.new_observation()
        type(self).reset_batch(self.state, self.params, np.zeros(self.num_envs, np.bool_), observation)
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

    # -- what a game may add -----------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Array]:
        """What holds of level and moment in all copies, shown to the agent or not: int64 [N] for each `fact_values`."""
        return {}

    def paint(self, index: int, full: bool = True) -> Canvas:
        """Copy `index` for people: the whole board, or only what the agent sees."""
        raise NotImplementedError

    def level(self, index: int) -> dict[str, Any]:
        """The level that copy `index` is playing, in the form that `set_level` takes."""
        raise NotImplementedError

    def set_level(self, index: int, level: dict[str, Any]) -> None:
        """Start an episode of a given level in copy `index`."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------------------------

    def _seed_streams(self, seed: int | Sequence[int | None]) -> None:
        if isinstance(seed, int | np.integer):
            check_range("seed", int(seed), 0, None)
            self.state.random[:] = streams(int(seed), range(self.first_index, self.first_index + self.num_envs))
        elif len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds for {self.num_envs} environments; give one seed, or one for each")
        else:
            for i, one in enumerate(seed):
                if one is not None:
                    self.state.random[i] = streams(int(one), range(1))[0]

    def _check_array(self, name: str, array: Array, shape: tuple[int, ...], dtype: Any) -> None:
        """Compiled code trusts its arrays, so their shapes and dtypes are checked before every call."""
        if array.shape != (self.num_envs, *shape) or array.dtype != dtype:
            expected = f"{np.dtype(dtype)} {(self.num_envs, *shape)}"
            raise ValueError(f"{name} is an array of {array.dtype} {array.shape}; expected {expected}")


def low_high(name: str, value: Any, low: int | None, high: int | None) -> tuple[int, int]:
    """The range that a parameter means, given as a number or as (smallest, largest); both inside low..high."""
    ends = tuple(value) if isinstance(value, Sequence) else (value, value)
    whole = [int(end) for end in ends if isinstance(end, int | np.integer)]
    if len(ends) != 2 or len(whole) != 2 or whole[0] > whole[1]:
        raise ValueError(f"{name} is {value!r}; expected an integer, or two: smallest, largest")
    for end in whole:
        check_range(name, end, low, high)
    return whole[0], whole[1]


def check_numbers(name: str, values: Any, length: int, n: int) -> Array:
    """`values` as an integer array [length], each in 0..n-1; else ValueError naming them."""
    numbers = np.asarray(values)
    if numbers.shape != (length,) or not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(f"{name} is {values!r}; expected {length} integers")
    if ((numbers < 0) | (numbers >= n)).any():
        raise ValueError(f"{name} is {values!r}; allowed: numbers in 0..{n - 1}")
    return numbers
