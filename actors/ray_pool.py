"""The pool of actors in Ray processes, on this machine or on a cluster.

Ray carries unrolls and weights, never single steps. At most MAX_IN_FLIGHT requests are open per actor; a new one is
sent only when an unroll has been taken, with the newest weights, which are put into the object store once a version.
"""

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import ray
import torch
from ray import ObjectRef
from ray.exceptions import RayError, RayTaskError

from ..agents.process import prepare_process
from ..agents.weights import Weights
from .actor import Actor
from .pool import MAX_IN_FLIGHT, Failures, MakeActor
from .unroll import Unroll


def share_tensors() -> None:
    """Let Ray move tensors as numpy arrays: out-of-band buffers, read without a copy."""
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    ray.util.register_serializer(torch.Tensor, serializer=_to_numpy, deserializer=torch.from_numpy)


def _to_numpy(tensor: torch.Tensor) -> Any:
    return tensor.detach().numpy()


class ActorProcess:
    """What runs in an actor's process: one Actor per member of the population it has served."""

    def __init__(self, make_actor: MakeActor, number: int, life: int, threads: int, niceness: int) -> None:
        os.nice(niceness)
        prepare_process(threads)
        share_tensors()
        self._make_actor, self._number, self._life = make_actor, number, life
        self._actors: dict[int, Actor] = {}

    def unroll(self, weights: Weights) -> Unroll:
        """One unroll with these weights."""
        return self._actor(weights.member).unroll(weights)

    def save(self) -> dict[int, Any]:
        """The exact state of every member's environments and memory."""
        return {member: actor.save() for member, actor in self._actors.items()}

    def restore(self, saved: dict[int, Any]) -> None:
        """Continue from a state made by `save`."""
        for member, state in saved.items():
            self._actor(int(member)).restore(state)

    def _actor(self, member: int) -> Actor:
        if member not in self._actors:
            self._actors[member] = self._make_actor(self._number, member, self._life)
        return self._actors[member]


class RayPool:
    """Actors in Ray processes.

    Args:
        make_actor: picklable function that makes an Actor.
        num_actors: how many processes.
        max_failures: actors that may be replaced before the run stops.
        report: where a failure's first traceback goes.
        cpus_per_actor: Ray resources that one actor claims.
        threads: torch threads per actor.
        niceness: how far actors step back when the learner wants their core (0..19).
        timeout: seconds without any answer after which the actor that was asked first is replaced.
    """

    def __init__(
        self,
        make_actor: MakeActor,
        num_actors: int,
        max_failures: int,
        report: Callable[[str], None] = print,
        *,
        cpus_per_actor: float = 1.0,
        threads: int = 1,
        niceness: int = 0,
        timeout: float = 120.0,
    ) -> None:
        share_tensors()
        self.num_actors = num_actors
        self._make_ref = ray.put(make_actor)
        self._options = (threads, niceness)
        self._timeout = timeout
        self._remote = ray.remote(num_cpus=cpus_per_actor, max_restarts=0)(ActorProcess)
        self._lives = [0] * num_actors
        self._failures = Failures(max_failures, report)
        self._handles = [self._start(number) for number in range(num_actors)]
        self._open: dict[ObjectRef[Any], int] = {}
        self._weights: Weights | None = None
        self._weights_ref: ObjectRef[Any] | None = None

    def publish(self, weights: Weights) -> None:
        """See ActorPool; the weights are stored when the next request is sent, once."""
        self._weights, self._weights_ref = weights, None

    def next(self) -> Unroll:
        """See ActorPool."""
        if not self._open:
            for _ in range(MAX_IN_FLIGHT):
                for number in range(self.num_actors):
                    self._request(number)
        while True:
            oldest = next(iter(self._open))
            # Of each actor only its first open request: the second can be here first, but comes after it.
            first: dict[int, ObjectRef[Any]] = {}
            for ref, number in self._open.items():
                first.setdefault(number, ref)
            ready, _ = ray.wait(list(first.values()), num_returns=1, timeout=self._timeout)
            ref = ready[0] if ready else oldest
            number = self._open.pop(ref)
            try:
                unroll = ray.get(ref, timeout=self._timeout if ready else 0)
            except RayError as problem:
                for _ in range(1 + self._replace(number, problem)):
                    self._request(number)
                continue
            self._request(number)
            return unroll

    def gather(self) -> list[Unroll]:
        """See ActorPool."""
        refs = [self._ask(number) for number in range(self.num_actors)]
        unrolls: list[Unroll] = []
        for number, ref in enumerate(refs):
            while True:
                try:
                    unrolls.append(ray.get(ref, timeout=self._timeout))
                    break
                except RayError as problem:
                    self._replace(number, problem)
                    ref = self._ask(number)
        return unrolls

    def save(self) -> list[Any]:
        """See ActorPool."""
        return ray.get([handle.save.remote() for handle in self._handles])

    def restore(self, saved: list[Any]) -> None:
        """See ActorPool."""
        if len(saved) != self.num_actors:
            raise ValueError(f"state of {len(saved)} actors for a pool of {self.num_actors}")
        ray.get([handle.restore.remote(state) for handle, state in zip(self._handles, saved, strict=True)])

    def open_requests(self) -> list[int]:
        """The actors' numbers, once for each request that is open now."""
        return list(self._open.values())

    def close(self) -> None:
        """See ActorPool."""
        for handle in self._handles:
            ray.kill(handle)
        self._handles, self._open = [], {}

    def _start(self, number: int) -> Any:
        return self._remote.remote(self._make_ref, number, self._lives[number], *self._options)

    def _ask(self, number: int) -> "ObjectRef[Any]":
        if self._weights_ref is None:
            assert self._weights is not None, "publish() comes before the first request"
            self._weights_ref = ray.put(self._weights)
        return self._handles[number].unroll.remote(self._weights_ref)

    def _request(self, number: int) -> None:
        self._open[self._ask(number)] = number

    def _replace(self, number: int, problem: RayError) -> int:
        """A new process for actor `number`; returns how many open requests went down with the old one."""
        trace = str(problem.cause) if isinstance(problem, RayTaskError) and not str(problem) else str(problem)
        ray.kill(self._handles[number])
        lost = [ref for ref, owner in self._open.items() if owner == number]
        for ref in lost:
            del self._open[ref]
        self._failures.add(number, trace)
        time.sleep(min(0.1 * 2**self._failures.count, 5.0))
        self._lives[number] += 1
        self._handles[number] = self._start(number)
        return len(lost)
