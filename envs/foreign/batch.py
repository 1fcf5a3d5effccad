"""Third-party environments with the interface of the batched engine."""

import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error
from gymnasium.utils import EzPickle
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import create_empty_array
from gymnasium.wrappers import PassiveEnvChecker

from ...base.errors import library_errors, refuse, user_errors
from ...base.messages import calling
from ..arrays import Array, ContractError, Observation
from ..masks import random_valid
from ..randomness import streams
from . import infos
from .check import OUTSIDE, check_observation, check_wrappers, require
from .spaces import action_form, observation_space_of, write_observation

MOST_SAVED = 4 * 2**20  # Maximum bytes of one actor's pickled environments in a checkpoint
WRONG = ".*(result returned by|old step API|signal to be a boolean|[Tt]he reward(?!.*'(bool|numpy|torch|jax)))"
"""Gymnasium's warnings that are errors here. Observations only need to fit the arrays; a reward may be a bool or an
array without axes."""


class ForeignBatch:
    """N instances of a Gymnasium environment, stepped in turn by gymnasium.vector.SyncVectorEnv.

    Autoreset is NEXT_STEP, as in engram's engine. The seed of every environment depends only on the run's seed
    and the environment's index. A registered vector entry point is not used, since its environments would share one
    random stream. `first_index` is the index of the first environment in a larger batch; errors contain `name`.
    """

    draws_views: bool = False  # `draw` returns the full board, whatever the agent observes
    replayable: bool = False  # The next level cannot be set
    trusted: bool = False  # Whether `restore` may unpickle

    def __init__(self, make_env: Callable[[], Any], num_envs: int, *, first_index: int = 0, name: str) -> None:
        self.name, self.num_envs, self.first_index = name, num_envs, first_index
        makers = [lambda env=env: env for env in _make_environments(make_env, num_envs, name)]
        with library_errors(f"{name} cannot be batched", AttributeError, RuntimeError, TypeError):
            self.vector: Any = infos.InfoVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        self.vector.at_step = lambda: self.at_step()
        self._describe()
        self.episode_fields = infos.episode_fields(self.vector.envs[0], name)

    def _describe(self) -> None:
        """Set the agents' spaces from those of `vector`."""
        space = self.vector.single_observation_space
        self.single_observation_space = observation_space_of(space, self.name)
        self._actions = action_form(self.vector.single_action_space, self.name)
        self.single_action_space = self._actions.space
        self._masks = infos.Masks(self.name, space, self._actions.choices)
        self.at_step: Callable[[], None] = lambda: None  # Called after the step or reset of each environment
        self.action_mask: Array | None = None
        """bool [N, A]: the valid actions of the current step; None for an environment without masks."""

    def new_observation(self) -> Observation:
        """Allocate zeroed observations of all environments: one array [N, ...], or a (nested) dict of arrays."""
        return create_empty_array(self.single_observation_space, self.num_envs)  # pyright: ignore

    def reset_into(self, observation: Observation, seed: int | None = None) -> None:
        """Start an episode in every environment and write all observations."""
        values, _ = self._checked("reset", lambda: self.vector.reset(seed=self._seeds(seed)))
        self._write(values, observation)
        self.action_mask = self._masks.reset(values, self.vector.infos)

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
        taken = self._actions.read(actions)
        values, reward[:], terminated[:], truncated[:], _ = self._checked("step", lambda: self.vector.step(taken))
        self._write(values, observation)
        self.action_mask = self._masks.read(values, self.vector.infos, terminated | truncated)

    def _write(self, values: Any, observation: Observation) -> None:
        write_observation(self.vector.single_observation_space, values, observation, self.name)

    def _checked(self, method: str, call: Callable[[], Any]) -> Any:
        """Call the environments and return their result; if that fails because of an observation, name it."""
        try:
            return call()
        except (TypeError, ValueError):
            for env, value in zip(self.vector.envs, self.vector._env_obs, strict=True):
                if value is not None:
                    check_observation(env.observation_space, f"{self.name}.{method}", value)
            raise

    def cut(self, where: Array) -> None:
        """End the current episodes of environments `where` (bool [N]); their next step begins new ones."""
        self.vector._autoreset_envs[where] = True

    def as_agents_see(self, values: Any, count: int) -> Observation:
        """Convert the environment's batched observations to arrays [N, ...] of `single_observation_space`."""
        arrays: Any = create_empty_array(self.single_observation_space, count)
        self._write(values, arrays)
        return arrays

    def as_the_environment_takes(self, actions: Array) -> Array:
        """Convert an agent's actions [N, ...] to the environment's form."""
        return self._actions.read(actions)

    def episode_facts(self, indices: Array) -> Array:
        """Return float32 [K, len(episode_fields)]: values from the last `info` of environments `indices`, nan if
        missing."""
        return infos.read([self.vector.infos[i] for i in indices], self.episode_fields)

    def info_scalars(self, key: str) -> Array:
        """Return float32 [N]: the value under `key` in each environment's last `info`, nan if missing."""
        return infos.read(self.vector.infos, (key,))[:, 0]

    def check(self) -> None:
        """Reset and step all environments before a run, with Gymnasium's checks. Raises ValueError naming the error."""
        envs = self.vector.envs
        self.vector.envs = [PassiveEnvChecker(env) for env in envs]
        try:
            with warnings.catch_warnings(action="ignore"):
                warnings.filterwarnings("error", WRONG)
                self._try_out()
        finally:
            self.vector.envs = envs

    def _try_out(self) -> None:
        """Reset and step all environments with any valid actions; name the method that fails."""
        n, space = self.num_envs, self.single_action_space
        observation, reward, flags = self.new_observation(), np.zeros(n, np.float32), np.zeros((2, n), np.bool_)
        self._try("reset", lambda: self.reset_into(observation, 0))
        actions = np.zeros((n, *(space.shape or ())), space.dtype)
        if self.action_mask is not None and self._actions.choices is not None:
            actions = random_valid(self.action_mask, self._actions.choices.tolist(), np.random.default_rng(0))
        self._try("step", lambda: self.step_into(actions, observation, reward, *flags))

    def _try(self, method: str, call: Callable[[], None]) -> None:
        try:
            calling(f"{self.name}.{method}", call, OUTSIDE, (ContractError, Warning))
        except Warning as problem:
            message = re.sub(r"\x1b\[\d+m|WARN: ", "", str(problem))  # Gymnasium's are colored
            raise ContractError(f"{self.name}.{method}: {message}") from problem

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
            text = f"{self.name} is not saved: its {self.num_envs} environments have {size / 2**20:.1f} MiB"
            refuse(size > MOST_SAVED, f"{text}; allowed: {MOST_SAVED / 2**20:.0f} MiB")
        return {
            "pickled": np.frombuffer(b"".join(states), np.uint8).copy(),
            "sizes": np.array([len(state) for state in states]),
            "ended": self.vector._autoreset_envs.copy(),
            "started": np.ones(self.num_envs, np.bool_),
        }

    def restore(self, saved: dict[str, Array]) -> None:
        """Restore a state returned by `save`. Unpickling runs any code in it, so this raises ValueError unless
        `trusted` is set."""
        self._check_saved(saved)
        states = np.split(saved["pickled"], np.cumsum(saved["sizes"])[:-1])
        self.vector.envs = [pickle.loads(state.tobytes()) for state in states]
        self.vector._autoreset_envs = saved["ended"].copy()

    def _check_saved(self, saved: dict[str, Array]) -> None:
        refuse(not self.trusted, f"saved state of {self.name} is code, and not trusted")
        count = len(saved.get("sizes", ()))
        require(count == self.num_envs, f"saved state of {self.name} contains {count} environments", str(self.num_envs))

    def close(self) -> None:
        """Close all environments."""
        self.vector.close()


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
    """Make `num_envs` distinct environments. Raises ValueError if this fails."""
    envs: list[Any] = []
    for i in range(num_envs):
        only = "while others exist; if only one may exist: --envs-per-actor 1 --num-actors 1"
        with user_errors(f"{name}: environment {i + 1} of {num_envs} cannot be made {only}" if i else ""):
            env: Any = calling(f"{name} cannot be made: its constructor", make_env, OUTSIDE)
        require(isinstance(env, gymnasium.Env), f"{name} made a {type(env).__name__}", "a gymnasium.Env")
        check_wrappers(env, name)
        envs.append(env)
    distinct = len({id(env.unwrapped) for env in envs})
    require(distinct == num_envs, f"{name} returned the same object for two environments", "a new one at each call")
    return envs
