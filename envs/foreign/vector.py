"""Third-party vector environments in any autoreset mode, converted to NEXT_STEP: an environment whose episode has ended
is stepped once more with the others (the result is discarded), then reset with `reset(options={"reset_mask": ...})`.

Environments written in JAX, `jax:module:make`, are a vector environment here: all are stepped by one jitted and vmapped
function, in one CPU thread. docs/reference/environments.md describes the interface. Spaces are attributes or functions
of params.
"""

import importlib
import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from ...base.errors import calling, check_choice, library_errors, refuse
from ..arrays import KEY, Array, ContractError, Observation, require
from ..randomness import streams
from .batch import OUTSIDE, ForeignBatch, check_wrappers, pickled
from .values import episode_fields, map_parts, read_infos


class VectorBatch(ForeignBatch):
    """A gymnasium.vector.VectorEnv of N environments. Those of a SyncVectorEnv or AsyncVectorEnv each have a seed; any
    other vector environment is reset with one seed, which depends on the first index."""

    def __init__(self, make_vector: Callable[[int], Any], num_envs: int, *, first_index: int = 0, name: str) -> None:
        self.name, self.num_envs, self.first_index = name, num_envs, first_index
        vector = calling(f"{name} cannot be made: its constructor", lambda: make_vector(num_envs), OUTSIDE)
        require(isinstance(vector, VectorEnv), f"{name} made a {type(vector).__name__}", "a gymnasium.vector.VectorEnv")
        self.vector: Any = vector
        actual = getattr(vector, "num_envs", None)
        require(actual == num_envs, f"{name} made {actual} environments", f"num_envs, which is {num_envs}")
        check_wrappers(vector, name)
        self.mode = vector.metadata.get("autoreset_mode")
        check_choice(f"{name}.metadata['autoreset_mode']", self.mode, list(AutoresetMode))
        with library_errors(f"{name} has no spaces", AttributeError):
            self._describe()
        inner = vector.unwrapped
        self.episode_fields = episode_fields(inner.envs[0] if type(inner) is SyncVectorEnv else inner, name)
        self._waiting = np.zeros(num_envs, np.bool_)  # Environments that must be reset at the next step
        self._info: Mapping[str, Any] = {}  # The merged info of the last step or reset
        self._reset_info: tuple[Mapping[str, Any], Array] = {}, self._waiting
        """The merged info of the last reset of some environments, and bool [N]: those not stepped since then."""
        self._valid: Array | None = None  # `action_mask` of the vector environment, which may be an episode ahead

    def reset_into(self, observation: Observation, seed: int | None = None) -> None:
        seeds, inner = self._seeds(seed), self.vector.unwrapped
        if seeds and not getattr(inner, "own_seeds", isinstance(inner, SyncVectorEnv | AsyncVectorEnv)):
            seeds = seeds[0]
        values, self._info = self.vector.reset(seed=seeds)
        self._write(values, observation)
        self.action_mask = self._valid = self._masks.reset(values, self._mask_infos(self._info))
        self._reset_info = self._info, np.zeros(self.num_envs, np.bool_)
        self._waiting[:] = False

    def step_into(self, actions: Array, observation: Any, reward: Array, terminated: Array, truncated: Array) -> None:
        taken, waiting = actions, self._waiting
        if waiting.all():
            self.reset_into(observation)
            reward[:], terminated[:], truncated[:] = 0, False, False
            return
        if waiting.any() and self.mode == AutoresetMode.DISABLED:
            self._reset_some(waiting)
        if self._valid is not None:  # the step of a waiting environment is discarded; its action must be valid
            taken = taken.copy()
            taken[waiting] = self._valid_actions(self._valid)[waiting]
        values, *outputs, self._info = self.vector.step(self._actions.read(taken))
        self._write(values, observation)
        reward[:], terminated[:], truncated[:] = outputs
        self._reset_info = {}, np.zeros(self.num_envs, np.bool_)
        ended = terminated | truncated
        self._valid = self._masks.read(values, self._mask_infos(self._info), ended)
        over = ended & ~waiting
        if self.mode == AutoresetMode.SAME_STEP:
            for i in np.flatnonzero(over).tolist():
                rows = map_parts(lambda part, i=i: part[i : i + 1], observation)
                map_parts(np.copyto, rows, self._final_observation(i))
        if waiting.any():
            self._reset_some(waiting, observation)
            reward[waiting], terminated[waiting], truncated[waiting] = 0, False, False
        self.action_mask = None if self._valid is None else self._valid | over[:, None]
        self._waiting = over if self.mode != AutoresetMode.NEXT_STEP else np.zeros_like(over)

    def cut(self, where: Array) -> None:
        self._waiting = self._waiting | where

    def episode_facts(self, indices: Array) -> Array:
        info = self._info.get("final_info", {}) if self.mode == AutoresetMode.SAME_STEP else self._info
        return read_infos([_info_of(info, i) for i in indices], self.episode_fields)

    def info_scalars(self, key: str) -> Array:
        info, where = self._reset_info
        latest = [_info_of(info if where[i] else self._info, i) for i in range(self.num_envs)]
        return read_infos(latest, (key,))[:, 0]

    def check(self) -> None:
        self._try_out()

    def _render(self, index: int) -> Any:
        images = self.vector.render()
        return None if images is None else images[index]

    def save(self) -> dict[str, Array]:
        pickled(self.vector, self.name)
        state = pickle.dumps((self.vector, self._waiting, True, self._valid))
        return {"pickled": np.frombuffer(state, np.uint8).copy()}

    def restore(self, saved: dict[str, Array]) -> None:
        refuse(not self.trusted, f"saved state of {self.name} is code, and not trusted")
        self.vector.close()
        self.vector, self._waiting, _, self._valid = pickle.loads(saved["pickled"].tobytes())

    def _reset_some(self, where: Array, observation: Observation | None = None) -> None:
        """Reset environments `where` (bool [N]) and write their observations. Raises ContractError if others change."""
        values, info = self.vector.reset(options={"reset_mask": where.copy()})
        if self._valid is not None:
            fresh = self._masks.read(values, self._mask_infos(info), ~where)
            assert fresh is not None, "there are masks"
            self._valid = np.where(where[:, None], fresh, self._valid)
        if observation is None:
            return
        self._reset_info = info, where
        first, same = self.as_agents_see(values, self.num_envs), list[bool]()
        map_parts(lambda a, b: same.append(np.array_equal(a[~where], b[~where], equal_nan=True)), first, observation)
        returned = f"{self.name} resets all environments although options['reset_mask'] selects some"
        require(all(same), returned, f"a reset of only those with {self.mode}, or {AutoresetMode.NEXT_STEP}")
        map_parts(lambda part, new: part.__setitem__(where, new[where]), observation, first)

    def _mask_infos(self, info: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Split the action masks in `info`, if any, by environment."""
        masks, valid = info.get(KEY), info.get(f"_{KEY}")
        has = [masks is not None and (valid is None or bool(valid[i])) for i in range(self.num_envs)]
        return [{KEY: masks[i]} if has[i] else {} for i in range(self.num_envs)]  # pyright: ignore

    def _final_observation(self, index: int) -> Observation:
        """Return the last observation [1, ...] of the episode that has just ended in environment `index`."""
        final = self._info.get("final_obs")
        value = None if final is None else map_parts(lambda part: part[index], final)  # arrays, or an array of objects
        returned = f"{self.name}.step returned no info['final_obs'] of environment {index}, whose episode has ended"
        require(value is not None, returned, f"its last observation, with autoreset_mode {self.mode}")
        return self.as_agents_see(map_parts(lambda part: np.asarray(part)[None], value), 1)


def _info_of(info: Any, index: int) -> Mapping[str, Any]:
    """Return the info of one environment from the merged info, without keys that it did not set."""
    if not isinstance(info, Mapping):  # an array of dicts
        return info[index] or {}
    result: dict[str, Any] = {}
    for key, values in info.items():
        is_set = info.get(f"_{key}")
        if not key.startswith("_") and np.ndim(values) and (is_set is None or is_set[index]):
            result[key] = values[index]
    return result


def start_jax(name: str) -> Any:
    """Import JAX and start its CPU client with one thread, unless it is running. Raises ValueError without JAX."""
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = "1"  # the size of XLA's thread pools, read when the client starts
    try:
        jax = importlib.import_module("jax")
        jax.devices("cpu")
    except ImportError as problem:
        raise ValueError(f"environment {name!r} needs JAX: {problem}; try: pip install jax") from problem
    finally:
        os.environ.pop("NPROC") if before is None else os.environ.update(NPROC=before)
    return jax


class JaxVectorEnv(VectorEnv[Any, Any, Any]):
    """N instances of a JAX environment in NEXT_STEP autoreset mode, each with its own chain of random keys; `made` is
    the environment, or (environment, params)."""

    own_seeds = True  # `reset(seed=[...])` accepts one seed per environment

    def __init__(self, made: Any, num_envs: int, name: str) -> None:
        self.jax, self.num_envs = start_jax(name), num_envs
        env, params = made if isinstance(made, tuple) else (made, getattr(made, "default_params", None))
        if not (hasattr(env, "reset") and hasattr(env, "step")):
            raise ValueError(f"{name} made a {type(env).__name__}; expected an environment with reset and step")
        if hasattr(env, "step_env") and not hasattr(type(env), "step_env"):
            raise ValueError(f"{name}: the step of {type(env).__name__} resets; expected: the environment unwrapped")
        self.single_observation_space = _space(getattr(env, "observation_space", None), params, name)
        self.single_action_space = _space(getattr(env, "action_space", None), params, name)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.episode_fields = getattr(env, "episode_fields", ())
        self._reset, self._step = _compile(self.jax, env, params, name)
        self.state: Any = None
        """Random keys uint32 [N, 2], states of the environments [N, ...], and bool [N]: episodes that have ended."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset; seed: None to continue the random keys, an int, or a list with one per environment."""
        if seed is None and self.state is not None:
            keys = self.state[0]
        else:
            seeds = seed if isinstance(seed, list) else streams(seed or 0, range(self.num_envs)) >> np.uint64(32)
            keys = self.jax.vmap(self.jax.random.PRNGKey)(np.asarray(seeds, np.uint32))
        observation, self.state = self._reset(keys)
        return self.jax.tree.map(np.asarray, (observation, {}))

    def step(self, actions: Any) -> Any:
        *outputs, self.state = self._step(self.state, np.asarray(actions))
        return self.jax.tree.map(np.asarray, tuple(outputs))


class JaxBatch(VectorBatch):
    """A VectorBatch of a JaxVectorEnv. Its exact state is saved as arrays; restoring them runs no code."""

    def cut(self, where: Array) -> None:
        *rest, ended = self.vector.state
        self.vector.state = *rest, np.asarray(ended) | where

    def save(self) -> dict[str, Array]:
        return {str(i): np.array(leaf) for i, leaf in enumerate(self.vector.jax.tree.leaves(self.vector.state))}

    def restore(self, saved: dict[str, Array]) -> None:
        """Continue from a state returned by `save`. Raises ValueError if it belongs to another environment."""
        self.reset_into(self.new_observation(), 0)
        leaves, tree = self.vector.jax.tree.flatten(self.vector.state)
        values = [saved[key] for key in sorted(saved, key=int)]
        if [(x.shape, x.dtype) for x in values] != [(x.shape, x.dtype) for x in leaves]:
            raise ValueError(f"saved state of {self.name} is of another environment or number of environments")
        self.vector.state = tree.unflatten(values)


def _compile(jax: Any, env: Any, params: Any, name: str) -> tuple[Any, Any]:
    """Compile functions of all environments: keys -> (observation, state); (state, actions) -> (..., info, state)."""
    resets = hasattr(env, "step_env")  # then `step` itself resets, and the final observation would be lost
    begin, advance = (env.reset_env, env.step_env) if resets else (env.reset, env.step)
    split = jax.vmap(jax.random.split, out_axes=1)  # [N, 2] -> [2, N, 2]: the next keys, and those to use now
    first = jax.vmap(lambda key: begin(key, params))

    def reset_all(keys: Any) -> Any:
        keys, used = split(keys)
        observation, state = first(used)
        return observation, (keys, state, np.zeros(len(keys), np.bool_))

    def step_one(key: Any, state: Any, action: Any) -> Any:
        outputs = advance(key, state, action, params)
        if len(outputs) not in (5, 6):
            raise ContractError(f"{name}.step returned {len(outputs)} values; expected 5, or 6 with truncated")
        observation, state, reward, terminated, *more, info = outputs
        if not more and hasattr(env, "is_truncated"):
            more = [env.is_truncated(state, params)]
        truncated = more[0] if more else terminated & info.get("truncated", False)
        return observation, state, reward, terminated if more else terminated & ~truncated, truncated, info

    def step_all(state: Any, actions: Any) -> Any:
        keys, inner, ended = state
        keys, used = split(keys)
        observation, inner, reward, terminated, truncated, info = jax.vmap(step_one)(used, inner, actions)
        where = jax.vmap(lambda at, new, old: jax.numpy.where(at, new, old).astype(old.dtype))

        def restart(stepped: Any) -> Any:
            return jax.tree.map(lambda new, old: where(ended, new, old), first(used), stepped)

        observation, inner = jax.lax.cond(ended.any(), restart, lambda stepped: stepped, (observation, inner))
        reward = jax.numpy.where(ended, 0, reward)
        terminated, truncated = (flag.astype(bool) & ~ended for flag in (terminated, truncated))
        return observation, reward, terminated, truncated, info, (keys, inner, terminated | truncated)

    return jax.jit(reset_all), jax.jit(step_all)


def _space(space: Any, params: Any, name: str) -> spaces.Space[Any]:
    space = space(params) if callable(space) else space
    if isinstance(space, spaces.Space):
        return space
    if isinstance(parts := getattr(space, "spaces", None), dict):
        return spaces.Dict({key: _space(part, params, name) for key, part in parts.items()})
    if hasattr(space, "low"):
        low, high = (np.broadcast_to(np.asarray(bound, space.dtype), space.shape) for bound in (space.low, space.high))
        return spaces.Box(low, high, space.shape, np.dtype(space.dtype).type)
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    raise ValueError(f"{name} has the space {space!r}; expected a Box, Discrete or Dict of Gymnasium or gymnax")
