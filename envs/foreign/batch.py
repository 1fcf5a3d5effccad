"""Third-party environments with the interface of the batched engine."""

import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error
from gymnasium.utils import EzPickle
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.wrappers import PassiveEnvChecker

from ...base.errors import EngramError, calling, library_errors, refuse, user_errors
from ..arrays import Array, ContractError, Observation, random_valid, require
from ..randomness import streams
from .values import InfoVector, Masks, action_form, agent_space, episode_fields, read_infos, write_observation

MOST_SAVED = 4 * 2**20  # Maximum bytes of one actor's pickled environments in a checkpoint
WRONG = ".*(result returned by|old step API|signal to be a boolean|[Tt]he reward(?!.*'(bool|numpy|torch|jax)))"
"""Gymnasium's warnings that are errors here; a reward may be a bool or an array without axes."""
OUTSIDE = (Path(__file__).parents[1], Path(gymnasium.__file__).parent, Path(np.__file__).parent)
"""Frames in these folders do not belong to the user."""
STATISTICS = {
    "obs_rms": ("NormalizeObservation", "--normalize-observations"),
    "return_rms": ("NormalizeReward", "--normalize-returns"),
}
"""Gymnasium wrappers with their own statistics, by the attribute that contains them, and the flags to use instead."""


class ForeignBatch:
    """N instances of a Gymnasium environment, stepped in turn by gymnasium.vector.SyncVectorEnv; a BatchedEnvironment.
    A registered vector entry point is not used, since its environments would share one random stream."""

    draws_views: bool = False  # `draw` returns the full board, whatever the agent observes
    replayable: bool = False
    trusted: bool = False

    def __init__(self, make_env: Callable[[], Any], num_envs: int, *, first_index: int = 0, name: str) -> None:
        self.name, self.num_envs, self.first_index = name, num_envs, first_index
        envs: list[Any] = []
        for i in range(num_envs):
            only = "while others exist; if only one may exist: --envs-per-actor 1 --num-actors 1"
            with user_errors(f"{name}: environment {i + 1} of {num_envs} cannot be made {only}" if i else ""):
                envs.append(calling(f"{name} cannot be made: its constructor", make_env, OUTSIDE))
            require(isinstance(envs[i], gymnasium.Env), f"{name} made a {type(envs[i]).__name__}", "a gymnasium.Env")
            check_wrappers(envs[i], name)
        distinct = len({id(env.unwrapped) for env in envs})
        require(distinct == num_envs, f"{name} returned the same object for two environments", "a new one at each call")
        with library_errors(f"{name} cannot be batched", AttributeError, RuntimeError, TypeError):
            makers = [lambda env=env: env for env in envs]
            self.vector: Any = InfoVector(makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        self.vector.at_step = lambda: self.at_step()
        self._describe()
        self.episode_fields = episode_fields(self.vector.envs[0], name)

    def _describe(self) -> None:
        space = self.vector.single_observation_space
        self.single_observation_space = agent_space(space, self.name)
        self._actions = action_form(self.vector.single_action_space, self.name)
        self.single_action_space = self._actions.space
        self._masks = Masks(self.name, space, self._actions.choices)
        self.at_step: Callable[[], None] = lambda: None  # Called after the step or reset of each environment
        self.action_mask: Array | None = None

    def new_observation(self) -> Observation:
        return create_empty_array(self.single_observation_space, self.num_envs)  # pyright: ignore

    def reset_into(self, observation: Observation, seed: int | None = None) -> None:
        values, _ = self._checked("reset", lambda: self.vector.reset(seed=self._seeds(seed)))
        self._write(values, observation)
        self.action_mask = self._masks.reset(values, self.vector.infos)

    def _seeds(self, seed: int | None) -> Any:
        if seed is None:
            return None
        indices = range(self.first_index, self.first_index + self.num_envs)
        return [int(state >> np.uint64(32)) for state in streams(seed, indices)]  # some accept only 32-bit seeds

    def step_into(self, actions: Array, observation: Any, reward: Array, terminated: Array, truncated: Array) -> None:
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
            returned = f"{self.name}.{method} returned an observation that does not fit observation_space"
            for env, value in zip(self.vector.envs, self.vector._env_obs, strict=True):
                space = env.observation_space
                try:
                    if value is not None:
                        concatenate(space, [value], create_empty_array(space))
                except (TypeError, ValueError, LookupError) as problem:
                    raise ContractError(f"{returned}, {space}: {problem}") from problem
            raise

    def cut(self, where: Array) -> None:
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
        return read_infos([self.vector.infos[i] for i in indices], self.episode_fields)

    def info_scalars(self, key: str) -> Array:
        """Return float32 [N]: the value under `key` in each environment's last `info`, nan if missing."""
        return read_infos(self.vector.infos, (key,))[:, 0]

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
        n, space = self.num_envs, self.single_action_space
        observation, reward, flags = self.new_observation(), np.zeros(n, np.float32), np.zeros((2, n), np.bool_)
        self._try("reset", lambda: self.reset_into(observation, 0))
        actions = np.zeros((n, *(space.shape or ())), space.dtype)
        if self.action_mask is not None:
            actions = self._valid_actions(self.action_mask)
        self._try("step", lambda: self.step_into(actions, observation, reward, *flags))

    def _try(self, method: str, call: Callable[[], None]) -> None:
        try:
            calling(f"{self.name}.{method}", call, OUTSIDE, (ContractError, Warning))
        except Warning as problem:
            message = re.sub(r"\x1b\[\d+m|WARN: ", "", str(problem))  # Gymnasium's are colored
            raise ContractError(f"{self.name}.{method}: {message}") from problem

    def _valid_actions(self, mask: Array) -> Array:
        """Choose any valid action for each environment: int64 [N], or [N, K]."""
        assert self._actions.choices is not None, "Box actions have no masks"
        return random_valid(mask, self._actions.choices.tolist(), np.random.default_rng(0))

    def draw(self, index: int, full: bool = True) -> Array:
        """Return an image of environment `index`, uint8 [H, W, 3]. Raises ValueError if it renders none."""
        try:
            image = self._render(index)
        except (error.Error, NotImplementedError) as problem:
            raise EngramError(f"{self.name} renders no images: {problem}".removesuffix(": ")) from problem
        refuse(np.ndim(image) != 3, f"{self.name} renders no images")
        return np.asarray(image).astype(np.uint8)

    def _render(self, index: int) -> Any:
        return self.vector.envs[index].render()

    def save(self) -> dict[str, Array]:
        """Return the exact state of all environments, pickled, without that of global random number generators."""
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
        """Restore a state returned by `save`. Unpickling runs any code in it, hence only if `trusted`."""
        self._check_saved(saved)
        states = np.split(saved["pickled"], np.cumsum(saved["sizes"])[:-1])
        self.vector.envs = [pickle.loads(state.tobytes()) for state in states]
        self.vector._autoreset_envs = saved["ended"].copy()

    def _check_saved(self, saved: dict[str, Array]) -> None:
        refuse(not self.trusted, f"saved state of {self.name} is code, and not trusted")
        count = len(saved.get("sizes", ()))
        require(count == self.num_envs, f"saved state of {self.name} contains {count} environments", str(self.num_envs))

    def close(self) -> None:
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


def check_wrappers(env: Any, name: str) -> None:
    """Raise ContractError if `env`, or one of the environments of a vector environment, has a wrapper of STATISTICS."""
    attributes = set[str]()
    while isinstance(env, gymnasium.Wrapper | VectorWrapper):
        attributes |= vars(env).keys()
        env = env.env
    for attribute, (wrapper, flag) in STATISTICS.items():
        parts = env.call("has_wrapper_attr", attribute) if isinstance(env, SyncVectorEnv | AsyncVectorEnv) else ()
        text = f"{name} is wrapped in {wrapper}, whose statistics differ between environments and are in no checkpoint"
        require(attribute not in attributes and not any(parts), text, f"no such wrapper, and {flag}")
