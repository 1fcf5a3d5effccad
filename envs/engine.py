"""The batched engine: N instances of one environment with Gymnasium's vector interface, levels and images."""

import inspect
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ..base.messages import check_integer, check_keys
from .arrays import Array
from .drawing import Canvas, Color
from .loops import ArrayForm, Copies
from .masks import KEY

HIDDEN = ("num_envs", "first_index", "render_mode")  # Parameters of every batch, independent of the environment


class BatchedEnv(Copies, VectorEnv[Array, Array, Array]):
    """N instances of a compiled environment with Gymnasium's vector interface.

    Args:
        num_envs: number of environments, at least 1.
        observation_space: space of one environment; the actions are `action_names`.
        state: NamedTuple of arrays [num_envs, ...] with fields `random` and `over`.
        params: NamedTuple of scalars that the compiled functions read.
        first_index: index of the first environment in a larger batch that is split over several engines.
        render_mode: None or "rgb_array".
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's own attribute)
        "autoreset_mode": AutoresetMode.NEXT_STEP,
        "render_modes": ["rgb_array"],
        "render_fps": 8,
    }
    symbols: ClassVar[tuple[tuple[Color, str], ...]] = ()  # Colors of the board and their meaning, for human players
    level_fields: ClassVar[tuple[str, ...]] = ()
    """Episode fields that describe the level's difficulty and are fixed before the episode; results are split by
    them."""
    fact_values: Mapping[str, tuple[str, ...]] = {}
    """Facts for studies of memory: by name, the meanings of the values 0, 1, ...; empty for a count."""
    level_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of a level, in the form that `level` returns and `set_level` accepts."""
    sampled_keys: ClassVar[tuple[str, ...]] = ()
    """Optional keys of a level; the environment samples missing values."""
    map_shape: tuple[int, int] | None = None
    """Rows and columns of the map that `mark_seen` fills; None for an environment without a map."""
    map_classes: tuple[int, ...] = ()  # Number of classes of each layer of the map
    replayable: bool = True  # Whether a level depends only on `streams`, not on the environment's index
    fixed_levels: int = 0
    """Number of levels if environment i always plays level i modulo this number; 0: every episode has its own
    level."""
    evaluation_args: ClassVar[Mapping[str, Any]] = {}
    """Constructor arguments that evaluations use by default, such as the split of the levels."""
    trusted: bool = False  # Whether `restore` may run code from a saved state; states of this engine contain no code

    def __new__(cls, *arguments: Any, **parameters: Any) -> Any:
        """Check parameter names and the number of environments before a constructor allocates anything."""
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
        state: Any,
        params: NamedTuple,
        first_index: int = 0,
        render_mode: str | None = None,
    ) -> None:
        form = ArrayForm(observation_space.shape, observation_space.dtype)
        super().__init__(num_envs, form, len(self.action_names), state, params, first_index)
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; allowed: None, 'rgb_array'")
        self.single_observation_space = observation_space
        self.single_action_space = spaces.Discrete(len(self.action_names))
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.render_mode = render_mode

    # -- Gymnasium's vector interface --------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Reset environments, as in Gymnasium.

        Args:
            seed: one seed for all environments, or one for each.
            options: `{"reset_mask": bool [N]}` resets only some environments; `{"level": [...]}` sets the levels of
                the next episodes: for each environment a level in the form of `level`, or None to sample one.
        """
        mask, levels = self._read(options)
        observation = self.new_observation()
        self.reset_into(observation, seed, mask)
        for index, level in enumerate(levels):
            if level is not None:
                self.set_level(index, level)
        return (self.observe_all() if levels else observation), self._masks()

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step all environments, as in Gymnasium; `info` contains the episode fields of episodes that ended."""
        observation = self.new_observation()
        reward = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        self.step_into(np.asarray(actions), observation, reward, terminated, truncated)
        ended = terminated | truncated
        info = self._masks()
        if ended.any():
            for name in self.episode_fields:
                info[name], info[f"_{name}"] = np.where(ended, getattr(self.state, name), 0), ended
        return observation, reward, terminated, truncated, info

    def observe(self, index: int) -> Array:
        """Return the current observation of environment `index`, e.g. after `set_level`."""
        return self.observe_all()[index]

    def observe_all(self) -> Array:
        """Return the current observations of all environments."""
        self._check_started("an observation")
        observation = self.new_observation()
        self.loops.reset(self.state, self.params, np.zeros(self.num_envs, np.bool_), observation)
        return observation

    def render(self) -> tuple[Array, ...] | None:
        """Return images of all environments, uint8 [H, W, 3] each; None unless render_mode is "rgb_array"."""
        return None if self.render_mode is None else tuple(self.draw(i) for i in range(self.num_envs))

    def draw(self, index: int, full: bool = True) -> Array:
        """Return an image of environment `index`, uint8 [H, W, 3]: the full board, or only what the agent observes."""
        return self.paint(index, full).image()

    def level_set(self) -> set[bytes]:
        """Return a key for each level that may be sampled; an empty set if there are too many for levels to repeat."""
        return set()

    def set_level(self, index: int, level: Mapping[str, Any]) -> None:
        """Start an episode of this level, in the form of `level`, in environment `index`; call reset() first. For an
        invalid level, raise ValueError naming the error and leave the environment unchanged."""
        self._check_started("set_level()")
        check_integer("index", index, 0, self.num_envs - 1)
        self.check_level("level", level)
        try:
            self.place_level(index, level)
        except TypeError as problem:  # such as a number where a list is expected
            raise ValueError(
                f"level is {level!r}: {problem}; expected values as in {reprlib.repr(self.level(index))}"
            ) from None
        self.state.over[index] = False

    def check_level(self, name: str, level: Any) -> None:
        """Raise ValueError unless `level` is a dict with the keys of a level."""
        if not isinstance(level, Mapping):
            raise ValueError(f"{name} is {level!r}; expected a dict with the keys {', '.join(self.level_keys)}")
        check_keys(name, "key", level, self.level_keys)
        for key in self.level_keys:
            if key not in level and key not in self.sampled_keys:
                raise ValueError(f"{name} has no {key!r}; expected the keys {', '.join(self.level_keys)}")

    # -- overridden by environments
    # -------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Array]:
        """Return facts of the level and the current step in all environments, observed or not: int64 [N] for each key
        of `fact_values`."""
        return {}

    @property
    def privileged_size(self) -> int:
        """Number of values that `privileged` returns for each environment."""
        return len(self.fact_values)

    def privileged(self) -> Array:
        """Return a privileged critic's additional inputs, float32 [N, privileged_size]: by default, the facts."""
        return np.stack(list(self.facts().values()), 1).astype(np.float32)

    def mark_seen(self, seen: Array) -> Array:
        """Write the current observations into maps of the episodes; return the agents' cells, int64 [N, 2].

        Args:
            seen: uint8 [N, *map_shape, layers]: 0 for an unobserved cell, else 1 + its class in the layer.
        """
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

    # ----------------------------------------------------------------------------------------------------------------

    def _masks(self) -> dict[str, Any]:
        """Return the action masks in the form of a vector environment's `info`."""
        mask = self.action_mask
        return {} if mask is None else {KEY: mask, f"_{KEY}": np.ones(self.num_envs, np.bool_)}

    def _read(self, options: Mapping[str, Any] | None) -> tuple[Array | None, Sequence[Any]]:
        """Return the mask and the levels in the options of a reset."""
        values = {} if options is None else options
        check_keys("reset", "option", values, ("level", "reset_mask"))
        mask = np.asarray(values["reset_mask"]) if "reset_mask" in values else None
        levels: Any = values.get("level", ())
        if "level" in values:
            if not isinstance(levels, list | tuple) or len(levels) != self.num_envs:
                text = f"{len(levels)} levels" if isinstance(levels, list | tuple) else f"a {type(levels).__name__}"
                raise ValueError(f"level is {text}; expected a list of {self.num_envs}, with None for random ones")
            for index, level in enumerate(levels):
                if level is not None:
                    self.check_level(f"level of environment {index}", level)
                    if mask is not None and not mask[index]:
                        raise ValueError(f"level of environment {index} is given, but reset_mask excludes it")
        return mask, levels


def parameter_names(batch_class: type[BatchedEnv]) -> list[str]:
    """Return the names of an environment's own parameters, without those that every batch has."""
    return [name for name in inspect.signature(batch_class).parameters if name not in (*HIDDEN, "batch")]
