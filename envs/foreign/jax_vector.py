"""Environments written in JAX: `jax:module:make`, all stepped by one jitted and vmapped function, in one CPU thread.
docs/reference/environments.md describes the interface. Spaces are attributes or functions of params."""

import importlib
import os
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ..arrays import Array, ContractError
from ..randomness import streams
from .vector import VectorBatch


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
        """Return the exact state: the leaves of `JaxVectorEnv.state`."""
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
    """Convert a space, or a function of params that returns it, to Gymnasium's."""
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
