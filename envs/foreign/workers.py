"""Slow environments stepped in worker processes, through gymnasium.vector.AsyncVectorEnv.

AsyncVectorEnv runs one process per environment. Here each of its environments is a group of environments, so N
processes step any number of them. Results do not depend on N: an environment's random stream depends only on its index.
"""

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.utils import batch_space

from ..arrays import Array, Observation
from .batch import ForeignBatch
from .spaces import empty

MakeGroup = Callable[[int, int], ForeignBatch]  # make(num_envs, first_index): picklable


class WorkerBatch(ForeignBatch):
    """N environments in `workers` processes at most, with the methods and results of one ForeignBatch.

    Args:
        make: makes the environments of one process, in that process.
        num_envs: N, at least 1.
        workers: processes, at least 1.
        first_index: index of the first environment in a larger batch that is split over several.
    """

    def __init__(self, make: MakeGroup, num_envs: int, workers: int, *, first_index: int = 0) -> None:
        self.num_envs, self.first_index = num_envs, first_index
        size = -(-num_envs // workers)
        starts = range(0, num_envs, size)
        self._parts = [slice(start, min(start + size, num_envs)) for start in starts]
        one = make(1, first_index)
        self.name, self.episode_fields = one.name, one.episode_fields
        observations, actions = one.single_observation_space, one.single_action_space
        choices = one.choices
        options = 1 if choices is None else int(choices.sum())
        spec: Any = _group_spaces(observations, actions, size, len(self.episode_fields), options)

        def group(number: int) -> Callable[[], gymnasium.Env[Any, Any]]:
            part, owner = self._parts[number], os.getpid()
            return lambda: _Group(make, part.stop - part.start, first_index + part.start, spec, owner)

        self.vector = one.vector
        self._describe()
        one.close()
        # forkserver: no thread, lock or open file of this process reaches the workers
        groups = [group(number) for number in range(len(self._parts))]
        self.vector = AsyncVectorEnv(groups, copy=False, context="forkserver")
        self._actions_of_groups = np.zeros((len(groups), *spec["action"].shape), spec["action"].dtype)
        self._end = Finalize(self, _end, (self.vector.processes,), exitpriority=10)

    def reset_into(self, observation: Observation, seed: int | None = None) -> None:
        rows = self._rows(lambda: self.vector.reset(seed=[seed] * len(self._parts)))
        _write(rows["observation"], observation, self.num_envs)
        self._read_mask(rows)
        self.started = True

    def step_into(
        self, actions: Array, observation: Observation, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        if not self.started:
            raise gymnasium.error.ResetNeeded(f"step of {self.name} before its reset")
        self._checked(actions)
        _flat(self._actions_of_groups)[: self.num_envs] = actions
        rows = self._rows(lambda: self.vector.step(self._actions_of_groups))
        _write(rows["observation"], observation, self.num_envs)
        for name, out in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
            out[:] = _flat(rows[name])[: self.num_envs]
        self._read_mask(rows)

    def _read_mask(self, rows: dict[str, Any]) -> None:
        masked = _flat(rows["masked"])[: self.num_envs].all()
        self.action_mask = _flat(rows["mask"])[: self.num_envs].astype(np.bool_) if masked else None

    def cut(self, where: Array) -> None:
        self._of_groups("cut", [where[part] for part in self._parts])

    def episode_facts(self, indices: Array) -> Array:
        return _flat(self.vector.observations["facts"])[indices]

    def info_scalars(self, key: str) -> Array:
        return np.concatenate(self._of_groups("info_scalars", [key] * len(self._parts)))

    def draw(self, index: int, full: bool = True) -> Array:
        """An image of environment `index`, uint8 [H, W, 3]; ValueError if it has none."""
        owner = next(i for i, part in enumerate(self._parts) if index < part.stop)
        requested = [index - part.start if i == owner else None for i, part in enumerate(self._parts)]
        return self._of_groups("draw", requested)[owner]

    def save(self) -> dict[str, Array]:
        """The exact state of all environments, as ForeignBatch.save returns it. Raises ValueError if there is none."""
        saved = self._of_groups("save", [None] * len(self._parts))
        return {key: np.concatenate([each[key] for each in saved]) for key in saved[0]}

    def restore(self, saved: dict[str, Array]) -> None:
        """Return to a state made by `save`, with any number of workers. Raises ValueError unless `trusted` is set."""
        if len(saved.get("sizes", ())) != self.num_envs:
            raise ValueError(
                f"saved state of {self.name} holds {len(saved.get('sizes', ()))} environments; expected {self.num_envs}"
            )
        ends = np.concatenate([[0], np.cumsum(saved["sizes"])])
        parts = [
            {key: value[part] for key, value in saved.items() if key != "pickled"}
            | {"pickled": saved["pickled"][ends[part.start] : ends[part.stop]]}
            for part in self._parts
        ]
        self._of_groups("restore", [(self.trusted, each) for each in parts])
        self.started = True

    def close(self) -> None:
        if self._end.still_active():
            self._call(self.vector.close)
            self._end()

    def _of_groups(self, what: str, arguments: list[Any]) -> list[Any]:
        """The results of a method of every group, each with its own argument; raises the first exception of one."""
        self._call(lambda: self.vector.set_attr("argument", arguments))
        result = self._call(lambda: self.vector.call("run", what))
        for each in result:
            if isinstance(each, BaseException):
                raise each
        return list(result)

    def _rows(self, call: Callable[[], Any]) -> dict[str, Any]:
        """Arrays that all groups wrote in a reset or step, [groups, size, ...]; raises their first exception."""
        rows, *_, infos = self._call(call)
        for problem in infos.get("problem", ()):
            if problem is not None:
                raise problem
        return rows

    def _call(self, call: Callable[[], Any]) -> Any:
        """The result of a call of the workers; RuntimeError where the process of one has ended."""
        try:
            return call()
        except (EOFError, OSError) as problem:
            self._end()
            self.vector.closed = True
            raise RuntimeError(f"a worker process of {self.name} has ended") from problem


class _Group(gymnasium.Env[Any, Any]):
    """The environments of one process, as one environment of an AsyncVectorEnv.

    Its observation is all that a step writes, so shared memory carries it. An exception of the environments is returned
    and not raised: AsyncVectorEnv ends a process that raises one.

    Args:
        make, size, first_index: make(size, first_index) makes the environments, at the first call in the worker.
        spec: spaces of the observation and the action.
        owner: id of the process that makes the AsyncVectorEnv.
    """

    def __init__(self, make: MakeGroup, size: int, first_index: int, spec: Any, owner: int) -> None:
        self.observation_space, self.action_space = spec["observation"], spec["action"]
        self._make, self._size, self._first_index = make, size, first_index
        self._batch: ForeignBatch | None = None
        self.argument: Any = None  # Of the next `run`
        if os.getpid() != owner:  # the owner saves on Ctrl-C and SIGTERM, and ends the workers itself
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)

    @property
    def batch(self) -> ForeignBatch:
        """The environments, and arrays [size, ...] that they write."""
        if self._batch is None:
            self._batch = self._make(self._size, self._first_index)
            self._rows = empty(self.observation_space, 1)
            self._own: Any = _first(self._rows, self._size)
        return self._batch

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments."""

        def reset() -> None:
            self.batch.reset_into(self._own["observation"], seed)
            self._put_mask()

        return self._answer(reset)

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step all environments with actions [size, ...]."""

        def step() -> None:
            own = self._own
            self.batch.step_into(
                action[: self._size], own["observation"], own["reward"], own["terminated"], own["truncated"]
            )
            over = np.flatnonzero(own["terminated"] | own["truncated"])
            if len(over):
                own["facts"][over] = self.batch.episode_facts(over)
            self._put_mask()

        rows, info = self._answer(step)
        return rows, 0.0, False, False, info

    def run(self, what: str) -> Any:
        """The result of a method of the environments with `argument`, or the exception that it raised."""
        try:
            batch, argument = self.batch, self.argument
            if what == "restore":
                batch.trusted, argument = argument
            if what == "save":
                return batch.save()
            return None if argument is None else getattr(batch, what)(argument)
        except Exception as problem:
            return _sendable(problem)

    def close(self) -> None:
        if self._batch is not None:
            self._batch.close()

    def _put_mask(self) -> None:
        mask = self.batch.action_mask
        self._own["masked"][:] = mask is not None
        if mask is not None:
            self._own["mask"][:] = mask

    def _answer(self, call: Callable[[], None]) -> tuple[Any, dict[str, Any]]:
        """Return the arrays that were written, and an info with the exception of the call, if there was one."""
        info: dict[str, Any] = {}
        try:
            _ = self.batch
            call()
        except Exception as problem:
            info["problem"] = _sendable(problem)
        rows = self._rows if self._batch is not None else empty(self.observation_space, 1)
        return _first(rows), info


def _group_spaces(observation: Any, action: Any, size: int, facts: int, options: int) -> spaces.Dict:
    """Spaces of what a group of `size` environments returns and takes."""
    flags = spaces.Box(0, 1, (size,), np.uint8)
    dtype = np.float32 if isinstance(action, spaces.Box) else np.int64
    shape = (size, *(action.shape or ()))
    return spaces.Dict(
        observation=spaces.Dict(
            observation=batch_space(observation, size),
            reward=spaces.Box(-np.inf, np.inf, (size,), np.float32),
            terminated=flags,
            truncated=flags,
            mask=spaces.Box(0, 1, (size, options), np.uint8),
            masked=flags,
            facts=spaces.Box(-np.inf, np.inf, (size, facts), np.float32),
        ),
        action=spaces.Box(0, 1, shape, dtype),  # AsyncVectorEnv reads its shape and dtype alone
    )


def _sendable(problem: Exception) -> Exception:
    """An exception with its traceback as a note; a RuntimeError in place of one that cannot be pickled."""
    problem.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:
        return RuntimeError(f"{type(problem).__name__}: {problem}")
    return problem


def _end(processes: list[Any]) -> None:
    """End workers that are still running, also those in a step."""
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()


def _flat(values: Array) -> Array:
    """[groups, size, ...] -> [groups * size, ...]."""
    return values.reshape(-1, *values.shape[2:])


def _write(values: Any, out: Any, count: int) -> None:
    """Copy the first `count` environments of [groups, size, ...] to [count, ...]."""
    if isinstance(values, dict):
        for key, part in values.items():
            _write(part, out[key], count)
    else:
        out[...] = _flat(values)[:count]


def _first(values: Any, count: int | None = None) -> Any:
    """[1, size, ...] -> views [count, ...] of the first, of all by default."""
    return {k: _first(v, count) for k, v in values.items()} if isinstance(values, dict) else values[0, :count]
