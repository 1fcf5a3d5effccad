"""Slow environments stepped in worker processes, each with a group of environments."""

import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from ..arrays import Array, Observation
from .batch import ForeignBatch
from .values import map_parts

MakeGroup = Callable[[int, int], ForeignBatch]  # make(num_envs, first_index): picklable


class WorkerBatch(ForeignBatch):
    """N environments in at most `workers` processes, with the methods and results of one ForeignBatch; `make` makes the
    environments of one process, in that process."""

    def __init__(self, make: MakeGroup, num_envs: int, workers: int, *, first_index: int = 0) -> None:
        self.num_envs, self.first_index = num_envs, first_index
        size = -(-num_envs // workers)
        self._parts = [slice(start, min(start + size, num_envs)) for start in range(0, num_envs, size)]
        one = make(1, first_index)
        self.name, self.episode_fields, self.vector = one.name, one.episode_fields, one.vector
        self._describe()
        one.close()
        self._facts = np.zeros((num_envs, len(self.episode_fields)), np.float32)
        context = multiprocessing.get_context("forkserver")  # inherits no thread, lock or open file
        self.processes, self._pipes = list[Any](), list[Any]()
        for part in self._parts:
            pipe, worker_pipe = context.Pipe()
            group = partial(make, part.stop - part.start, first_index + part.start)
            process = context.Process(target=_work, args=(worker_pipe, group), daemon=True)
            process.start()
            worker_pipe.close()
            self.processes.append(process)
            self._pipes.append(pipe)
        self._end = Finalize(self, _end, (self.processes, self._pipes), exitpriority=10)

    def reset_into(self, observation: Observation, seed: int | None = None) -> None:
        observations, masks = zip(*self._call("reset", [(seed,)] * len(self._parts)), strict=True)
        self._read(observations, masks, observation)

    def step_into(self, actions: Array, observation: Any, reward: Array, terminated: Array, truncated: Array) -> None:
        results = self._call("step", [(actions[part],) for part in self._parts])
        observations, masks, *others = zip(*results, strict=True)
        reward[:], terminated[:], truncated[:], self._facts = map(np.concatenate, others)
        self._read(observations, masks, observation)

    def _read(self, observations: Sequence[Any], masks: Sequence[Any], out: Observation) -> None:
        map_parts(lambda target, *parts: np.concatenate(parts, out=target), out, *observations)
        self.action_mask = None if masks[0] is None else np.concatenate(masks)

    def cut(self, where: Array) -> None:
        self._call("cut", [(where[part],) for part in self._parts])

    def episode_facts(self, indices: Array) -> Array:
        return self._facts[indices]

    def info_scalars(self, key: str) -> Array:
        return np.concatenate(self._call("info_scalars", [(key,)] * len(self._parts)))

    def draw(self, index: int, full: bool = True) -> Array:
        owner = next(i for i, part in enumerate(self._parts) if index < part.stop)
        return self._call("draw", [(index - self._parts[owner].start,)], self._pipes[owner : owner + 1])[0]

    def save(self) -> dict[str, Array]:
        saved = self._call("save", [()] * len(self._parts))
        return {key: np.concatenate([part[key] for part in saved]) for key in saved[0]}

    def restore(self, saved: dict[str, Array]) -> None:
        """Restore a state returned by `save` with any number of workers. Raises ValueError unless `trusted` is set."""
        self._check_saved(saved)
        ends = np.concatenate([[0], np.cumsum(saved["sizes"])])
        parts = list[tuple[dict[str, Array]]]()
        for part in self._parts:
            values = {key: value[part] for key, value in saved.items() if key != "pickled"}
            parts.append((values | {"pickled": saved["pickled"][ends[part.start] : ends[part.stop]]},))
        self._call("restore", parts)

    def close(self) -> None:
        if self._end.still_active():
            self._end.cancel()
            _end(self.processes, self._pipes, 10.0)

    def _call(self, name: str, arguments: Sequence[tuple[Any, ...]], pipes: Sequence[Any] = ()) -> list[Any]:
        """Call a method of every group, or of those at `pipes`, each with its own arguments, and return the results.
        Raises the first exception among them, or RuntimeError if a process has ended."""
        pipes = pipes or self._pipes
        try:
            for pipe, values in zip(pipes, arguments, strict=True):
                pipe.send((name, values))
            results = [pipe.recv() for pipe in pipes]
        except (EOFError, OSError) as problem:
            self._end()
            raise RuntimeError(f"a worker process of {self.name} has ended") from problem
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


def _end(processes: Sequence[Any], pipes: Sequence[Any], seconds: float = 0.0) -> None:
    """Wait `seconds` for each process to close its environments, then kill it if it is still running."""
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join(seconds)
        process.kill()
        process.join()


class _Group:
    """The environments of one process, with a reset and step that return everything the parent process needs."""

    def __init__(self, make: Callable[[], ForeignBatch]) -> None:
        self._batch = make()
        self._batch.trusted = True  # the parent process restores only what it trusts
        self._observation = self._batch.new_observation()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def reset(self, seed: int | None) -> tuple[Any, ...]:
        self._batch.reset_into(self._observation, seed)
        return self._observation, self._batch.action_mask

    def step(self, actions: Array) -> tuple[Any, ...]:
        count = len(actions)
        reward, flags = np.zeros(count, np.float32), np.zeros((2, count), np.bool_)
        self._batch.step_into(actions, self._observation, reward, *flags)
        facts = np.zeros((count, len(self._batch.episode_fields)), np.float32)
        over = np.flatnonzero(flags.any(0))
        facts[over] = self._batch.episode_facts(over)
        return self._observation, self._batch.action_mask, reward, *flags, facts


def _work(pipe: Any, make: Callable[[], ForeignBatch]) -> None:
    """Execute calls (method, arguments) for one group, made at the first call, until the pipe is closed."""
    for signum in (signal.SIGINT, signal.SIGTERM):  # on these, the parent saves and then ends its workers itself
        signal.signal(signum, signal.SIG_IGN)
    group: Any = None
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            break
        try:
            group = group or _Group(make)
            result = getattr(group, name)(*arguments)
        except Exception as problem:
            problem.add_note(traceback.format_exc())
            result = problem
            try:
                pickle.loads(pickle.dumps(problem))
            except Exception:
                result = RuntimeError(f"{type(problem).__name__}: {problem}")
        pipe.send(result)
    if group is not None:
        group.close()
