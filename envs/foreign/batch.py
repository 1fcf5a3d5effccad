"""Third-party environments with the interface of the batched engine."""

import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error
from gymnasium.utils import EzPickle
from gymnasium.vector import AutoresetMode

from ...base.errors import library_errors, refuse, user_errors
from ...base.messages import calling, check_integer
from ..arrays import Array, Observation
from ..randomness import streams
from . import facts
from .check import OUTSIDE, check_behavior, check_observation, check_spaces, check_wrappers, require, sampling_mask
from .masks import Masks
from .spaces import action_form, empty, observation_form

MOST_SAVED = 4 * 2**20  # Maximum bytes of one actor's pickled environments in a checkpoint


class ForeignBatch:
    """N instances of a Gymnasium environment, stepped in turn by gymnasium.vector.SyncVectorEnv.

    Autoreset is NEXT_STEP, as in engram's engine. The seed of every environment depends only on the run's seed
    and the environment's index. A registered vector entry point is not used, since its environments would share one
    random stream.

    Args:
        make_env: makes one environment.
        num_envs: number of environments, at least 1.
        first_index: index of the first environment in a larger batch that is split into several.
        name: name in error messages.
    """

    draws_views: bool = False  # `draw` returns the full board, whatever the agent observes
    replayable: bool = False  # The next level cannot be set
    trusted: bool = False  # Whether `restore` may unpickle

    def __init__(self, make_env: Callable[[], Any], num_envs: int, *, first_index: int = 0, name: str) -> None:
        check_integer("num_envs", num_envs, 1, None)
        check_integer("first_index", first_index, 0, None)
        self.name, self.num_envs, self.first_index = name, num_envs, first_index
        makers = [lambda env=env: env for env in _make_environments(make_env, num_envs, name)]
        self.vector: Any = facts.InfoVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP, name=name)
        self._describe()
        self.episode_fields = facts.episode_fields(self.vector.envs[0], name)

    def _describe(self) -> None:
        """Set the agents' spaces from those of `vector`."""
        self._observations = observation_form(self.vector.single_observation_space, self.name)
        self._actions = action_form(self.vector.single_action_space, self.name)
        self.single_observation_space = self._observations.space
        self.single_action_space = self._actions.space
        self._masks = Masks(self.name, self.vector.single_observation_space, self._actions.choices)
        self.action_mask: Array | None = None
        """bool [N, A]: the valid actions of the current step; None for an environment without masks."""
        self.started = False

    @property
    def choices(self) -> Array | None:
        """int64 [K]: number of options of each choice of an action; None for a Box."""
        return self._actions.choices

    @property
    def at_step(self) -> Callable[[], None]:
        """Callback that runs after the step or reset of each environment."""
        return self.vector.at_step

    @at_step.setter
    def at_step(self, call: Callable[[], None]) -> None:
        self.vector.at_step = call

    def new_observation(self) -> Observation:
        """Allocate zeroed observations of all environments: one array [N, ...], or a (nested) dict of arrays."""
        return empty(self.single_observation_space, self.num_envs)

    def reset_into(self, observation: Observation, seed: int | None = None) -> None:
        """Start an episode in every environment and write all observations."""
        seeds = self._seeds(seed)
        values, _ = self._staying(lambda: self.vector.reset(seed=seeds))
        self._observations.write(values, observation)
        self.action_mask = self._masks.reset(values, self.vector.infos)
        self.started = True

    def _seeds(self, seed: int | None) -> Any:
        """Return a seed for each environment, which depends only on the run's seed and the environment's index."""
        if seed is None:
            return None
        indices = range(self.first_index, self.first_index + self.num_envs)
        return [int(state >> np.uint64(32)) for state in streams(seed, indices)]  # some accept only 32-bit seeds

    def step_into(
        self, actions: Array, observation: Observation, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """Step all environments with actions int [N] (or [N, K]); write observations, reward, terminated and
        truncated."""
        taken = self._actions.read(self._checked(actions))
        try:
            values, reward[:], terminated[:], truncated[:], _ = self._staying(lambda: self.vector.step(taken))
        except (TypeError, ValueError):
            for env, value in zip(self.vector.envs, self.vector._env_obs, strict=True):
                check_observation(env.observation_space, f"{self.name}.step", value)
            raise
        self._observations.write(values, observation)
        self.action_mask = self._masks.read(values, self.vector.infos, terminated | truncated)

    def cut(self, where: Array) -> None:
        """End the current episodes of environments `where` (bool [N]); their next step begins new ones."""
        self.vector._autoreset_envs[where] = True

    def as_agents_see(self, values: Any, count: int) -> Observation:
        """Convert the environment's batched observations to arrays [N, ...] of `single_observation_space`."""
        arrays = empty(self.single_observation_space, count)
        self._observations.write(values, arrays)
        return arrays

    def as_the_environment_takes(self, actions: Array) -> Array:
        """Convert an agent's actions [N, ...] to the environment's form."""
        return self._actions.read(actions if self._actions.choices is None else actions.reshape(len(actions), -1))

    def episode_facts(self, indices: Array) -> Array:
        """Return float32 [K, len(episode_fields)]: values from the last `info` of environments `indices`, nan if
        missing."""
        return facts.read([self.vector.infos[i] for i in indices], self.episode_fields)

    def info_scalars(self, key: str) -> Array:
        """Return float32 [N]: the value under `key` in each environment's last `info`, nan if missing."""
        return facts.read(self.vector.infos, (key,))[:, 0]

    def check(self) -> None:
        """Reset and step the first environment before a run. Raises ValueError naming the error."""
        env = self.vector.envs[0]
        check_behavior(env, self.name, lambda *made: env.action_space.sample(sampling_mask(env, self.name, *made)))

    def draw(self, index: int, full: bool = True) -> Array:
        """Return an image of environment `index`, uint8 [H, W, 3]. Raises ValueError if it renders none."""
        image, why = None, ""
        try:
            image = self._render(index)
        except (error.Error, NotImplementedError) as problem:
            why = f": {problem}".removesuffix(": ")
        refuse(image is None or np.ndim(image) != 3, f"{self.name} renders no images{why}")
        return np.asarray(image).astype(np.uint8)

    def _render(self, index: int) -> Any:
        return self.vector.envs[index].render()

    def save(self) -> dict[str, Array]:
        """Return the exact state of all environments as pickled bytes, uint8. Raises ValueError if an environment
        cannot be copied. Global random number generators are not included."""
        states = list[bytes]()
        for env in self.vector.envs:
            states.append(pickled(env, self.name))
            size = len(states[-1]) * self.num_envs
            refuse(
                size > MOST_SAVED,
                f"{self.name} is not saved: its {self.num_envs} environments have {size / 2**20:.1f} MiB; "
                f"allowed: {MOST_SAVED / 2**20:.0f} MiB",
            )
        return {
            "pickled": np.frombuffer(b"".join(states), np.uint8).copy(),
            "sizes": np.array([len(state) for state in states]),
            "ended": self.vector._autoreset_envs.copy(),
            "started": np.full(self.num_envs, self.started),
        }

    def restore(self, saved: dict[str, Array]) -> None:
        """Restore a state returned by `save`. Unpickling runs any code in it, so this raises ValueError unless
        `trusted` is set."""
        self._check_saved(saved)
        states = np.split(saved["pickled"], np.cumsum(saved["sizes"])[:-1])
        self.vector.envs = [pickle.loads(state.tobytes()) for state in states]
        self.vector._autoreset_envs, self.started = saved["ended"].copy(), bool(saved["started"].all())

    def _check_saved(self, saved: dict[str, Array]) -> None:
        refuse(not self.trusted, f"saved state of {self.name} is code, and not trusted")
        count = len(saved.get("sizes", ()))
        require(count == self.num_envs, f"saved state of {self.name} contains {count} environments", str(self.num_envs))

    def close(self) -> None:
        """Close all environments."""
        self.vector.close()

    def _staying(self, call: Callable[[], Any]) -> Any:
        """Call the environment and return its result. Raises RuntimeError if it calls sys.exit."""
        try:
            return call()
        except SystemExit as problem:
            raise RuntimeError(f"{self.name} called sys.exit({problem.code!r})") from problem

    def _checked(self, actions: Array) -> Array:
        """Check actions and return them as int64 [N, K], all in range, or as floats [N, K], all finite."""
        if not self.started:
            raise error.ResetNeeded(f"step of {self.name} before its reset")
        shape = (self.num_envs, *(self.single_action_space.shape or ()))
        choices = self._actions.choices
        box = choices is None
        if actions.shape != shape or not (np.isfinite(actions).all() if box else actions.dtype.kind in "iu"):
            kind = "finite" if box else "integers"
            raise ValueError(f"actions are an array of {actions.dtype} {actions.shape}; expected {kind} {shape}")
        if choices is None:
            return actions
        whole = actions.astype(np.int64).reshape(self.num_envs, -1)
        bad = np.argwhere((whole < 0) | (whole >= choices))
        if len(bad):
            env, choice = bad[0]
            allowed = f"0..{choices[choice] - 1}"
            raise ValueError(f"action {actions[env]} for environment {env} of {self.name}; allowed: {allowed}")
        return whole


def pickled(env: Any, name: str) -> bytes:
    """Pickle an environment or vector environment. Raises ValueError if a copy would not have the same state."""
    part = env
    while part is not None:
        kind = type(part).__name__
        refuse(isinstance(part, EzPickle), f"{name} cannot be saved: a copy of it ({kind}) begins again")
        part = part.env if isinstance(part, gymnasium.Wrapper | gymnasium.vector.VectorWrapper) else None
    with library_errors(f"{name} cannot be saved: it cannot be pickled", Exception):
        return pickle.dumps(env)


def _make_environments(make_env: Callable[[], Any], num_envs: int, name: str) -> list[Any]:
    """Make `num_envs` distinct environments with the same spaces. Raises ValueError if this fails."""
    envs: list[Any] = []
    objects: set[int] = set()
    for i in range(num_envs):
        only = "while others exist; if only one may exist: --envs-per-actor 1 --num-actors 1"
        with user_errors(f"{name}: environment {i + 1} of {num_envs} cannot be made {only}" if i else ""):
            env: Any = calling(f"{name} cannot be made: its constructor", make_env, OUTSIDE)
        require(isinstance(env, gymnasium.Env), f"{name} made a {type(env).__name__}", "a gymnasium.Env")
        check_spaces(env, name)
        check_wrappers(env, name)
        objects.add(id(env.unwrapped))
        require(len(objects) > i, f"{name} returned the same object for two environments", "a new one at each call")
        for space in ("observation_space", "action_space"):
            this, first = getattr(env, space), getattr(envs[0] if envs else env, space)
            require(this == first, f"{name}: environment {i} has the {space} {this}", f"that of the first, {first}")
        envs.append(env)
    return envs
