"""Acting in a thread of the learner's process, for `--act-on`."""

import queue
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from ..agents.threads import become_helper
from ..agents.values import Weights
from .local_pool import LocalPool
from .packed import record_event, stream_module, take_over, tensors
from .unroll import Unroll

WAIT_SECONDS = 1.0  # Seconds for which `next` waits for an unroll
Made = tuple[list[Unroll], Any]  # Unrolls, and the event after which the learner's stream may read their tensors


class ThreadPool(LocalPool):
    """Pool of all actors in one thread of this process, concurrently with learning: environments and networks release
    the GIL. Unrolls are not copied and stay on the GPU.

    Args:
        pool, together: arguments of LocalPool.
        num_envs: environments per actor.
        ahead: limit on a member's environments requested and not yet learned from (at least those of one actor).
    """

    def __init__(self, *pool: Any, num_envs: int, ahead: int, together: bool = False) -> None:
        super().__init__(*pool, together=together)
        self.still = threading.Lock()
        self._num_envs, self._ahead = num_envs, max(ahead, num_envs)
        self._unlearned: Counter[int] = Counter()  # Environments requested and not yet learned from, by member
        self._turns: Counter[int] = Counter()  # First actor of each member's next request
        self._streaming = False
        self._streams = stream_module(self.device)
        # High priority: an actor's few operations start before those of an update in progress.
        self._stream: Any = self._streams.Stream(self.device, priority=-1) if self._streams else None
        self._thread = ThreadPoolExecutor(1, "actors", become_helper)
        self._results: queue.SimpleQueue[Future[Made]] = queue.SimpleQueue()

    def publish(self, weights: Weights, learned: int = 0) -> None:
        begins = self._set(weights)
        self._unlearned[weights.member] = max(0, self._unlearned[weights.member] - learned)
        if begins:  # unrolls requested earlier are not learned from
            del self._unlearned[weights.member]
        if self._streaming:
            self._request_all()

    def next(self) -> Unroll | None:
        self._streaming = True
        self._request_all()
        if not self._made:
            try:
                self._made = self._take(WAIT_SECONDS)
            except queue.Empty:
                return None
        return self._made.pop(0)

    def _one_of_each(self, weights: Sequence[Weights]) -> list[Unroll]:
        self._request(range(self.num_actors), weights)
        return self._take(None)

    def save(self) -> list[Any]:
        saved = super().save()
        self._wait()
        return saved

    def restore(self, saved: list[Any]) -> None:
        super().restore(saved)
        self._wait()

    def _wait(self) -> None:
        """Wait for work that this thread has started, since the actors' stream uses the same memory next."""
        if (event := record_event(self.device)) is not None:
            event.synchronize()

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        super().close()

    def _request_all(self) -> None:
        """Request all unrolls that the bound allows, of as many actors at once as possible."""
        while requests := self._round():
            for numbers, weights in requests.items():
                self._request(numbers, weights)

    def _round(self) -> dict[range, list[Weights]]:
        """Select at most one request per member: for all members with room if they act together, else for one."""
        requests: dict[range, list[Weights]] = {}
        served: set[int] = set()
        while (self._together or not served) and (
            member := self._schedule.next(lambda m: m not in served and self._room(m) > 0)
        ) is not None:
            first = self._turns[member]
            numbers = range(first, min(first + self._room(member), self.num_actors))
            self._turns[member] = numbers.stop % self.num_actors
            self._unlearned[member] += len(numbers) * self._num_envs
            requests.setdefault(numbers, []).append(self._weights[member])
            served.add(member)
        return requests

    def _room(self, member: int) -> int:
        """Number of actors that another request for a member may use."""
        return (self._ahead - self._unlearned[member]) // self._num_envs

    def _request(self, numbers: range, weights: Sequence[Weights]) -> None:
        self._thread.submit(self._make, numbers, weights).add_done_callback(self._results.put)

    def _take(self, seconds: float | None) -> list[Unroll]:
        unrolls, event = self._results.get(timeout=seconds).result()
        for unroll in unrolls:
            take_over(tensors(unroll), event, self.device)
        return unrolls

    def _make(self, numbers: range, weights: Sequence[Weights]) -> Made:
        with self.still, self._streams.stream(self._stream) if self._streams else nullcontext():
            return self.unrolls(numbers, weights), record_event(self.device)
