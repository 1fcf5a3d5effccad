"""Flow control of requests: which unrolls may be requested, and the order of responses, to bound policy lag.

Updates learn from a member's environments in the order of their requests, `batch_size` at a time. If E
environments are requested and not yet learned from (including those of the batch being learned from), the last
of them belongs to the ceil(E / batch_size)-th update from now, so the weights that act there will be
ceil(E / batch_size) - 1 updates old when its unroll is learned from. A request that would exceed `max_lag`
waits.

With max_lag = 1 this is double buffering: one batch is made while another is learned from. The bound is independent
of the number and speed of actors: a response that overtakes an older request waits for it. An actor that
is far slower than the others is passed over eventually, and its unroll is not learned from (`pass_over`).
"""

from collections import Counter, deque

from .slot import ActorSlot, Request

MOST_AT_ONCE = 8  # Unrolls per request that suffice to amortize its cost
NARROW = 4
"""Environments per actor up to which transferring an unroll costs far less than its request (half a millisecond)."""
REQUESTS_PER_SLOT = 2  # Smallest limit of open requests per slot: one in progress, and the next one queued


class RequestWindow:
    """Flow control of a stream of unrolls.

    Args:
        batch_size: environments that one update learns from.
        max_lag: largest age, in updates, of the acting weights when an unroll is learned from.
        num_envs: environments per actor.
        num_actors: number of actor slots; None if it changes.
    """

    def __init__(self, batch_size: int, max_lag: int, num_envs: int, num_actors: int | None) -> None:
        self._size = (max_lag + 1) * batch_size
        ahead = max_lag * batch_size // ((num_actors or batch_size) * num_envs)
        self.unrolls = max(1, min(MOST_AT_ONCE, ahead)) if num_envs <= NARROW else 1
        """Consecutive unrolls per request, with the same weights."""
        self.requests_per_slot = max(REQUESTS_PER_SLOT, ahead // self.unrolls)
        self._width = self.unrolls * num_envs
        self._unlearned: Counter[int] = Counter()  # Environments requested and not yet learned from, by member
        self._order: dict[int, deque[Request]] = {}
        """Requests whose responses have not been returned, by member, oldest first."""

    def has_room(self, member: int) -> bool:
        """Whether another request of `member` respects the bound."""
        return self._unlearned[member] + self._width <= self._size

    def sent(self, request: Request) -> None:
        """Record a request."""
        self._unlearned[request.member] += self._width
        self._order.setdefault(request.member, deque()).append(request)

    def learned(self, member: int, environments: int) -> None:
        """Record an update of `member` from this number of environments."""
        self._unlearned[member] = max(0, self._unlearned[member] - environments)

    def lost(self, request: Request) -> None:
        """Record that a request gets no response, or one that is too late; no effect if already recorded."""
        order = self._order.get(request.member, deque())
        if request in order:
            order.remove(request)
            self._unlearned[request.member] -= self._width

    def forget(self, member: int) -> None:
        """Discard all open requests: the member continues with another one's weights."""
        self._order.pop(member, None)
        del self._unlearned[member]

    def next(self) -> Request | None:
        """Return the next completed request in its member's order, of the member that has waited longest; else None."""
        heads = [order[0] for order in self._order.values() if order and order[0].answer is not None]
        if not heads:
            return None
        first = min(heads, key=lambda request: request.index)
        self._order[first.member].popleft()
        return first

    def blocking(self) -> ActorSlot | None:
        """Return the slot whose response blocks those of others, the oldest if there are several; else None."""
        waiting = [order[0] for order in self._order.values() if any(request.answer is not None for request in order)]
        return min(waiting, key=lambda request: request.index).slot if waiting else None
