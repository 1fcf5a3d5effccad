"""Third-party vector environments in any autoreset mode, converted to NEXT_STEP: an environment whose episode has ended
is stepped once more with the others (the result is discarded), then reset with `reset(options={"reset_mask": ...})`."""

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from ...base.errors import calling, check_choice, library_errors, refuse
from ..arrays import KEY, Array, Observation, require
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

    def step_into(
        self, actions: Array, observation: Observation, reward: Array, terminated: Array, truncated: Array
    ) -> None:
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
