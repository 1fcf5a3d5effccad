"""Which unrolls may be asked for now, and in which order answers are handed on: this keeps the bound on policy lag.

Updates learn from a member's environments in the order in which they were asked for, `batch_size` at a time. If E
environments are asked for and not learned from yet (those of the batch in the learner's hands are among them), the last
of them belongs to the update number ceil(E / batch_size) counted from now, so the weights that act there will be
ceil(E / batch_size) - 1 updates old when they are learned from. A request that would make this more than `max_lag`
waits.

With max_lag = 1 that is double buffering: while one batch is learned from, one is made. Nothing here depends on how
many actors there are, nor on how fast they are: an answer that overtakes an older request waits for it. An actor that
is far slower than the others is passed over in the end, and what it makes is not learned from (`pass_over`).
"""

from collections import Counter, deque

from .slot import ActorSlot, Request

MOST_AT_ONCE = 8
"""Unrolls per request that are enough to share its cost."""
NARROW = 4
"""Environments per actor up to which moving an unroll costs far less than asking for it (half a millisecond)."""
REQUESTS_PER_SLOT = 2
"""Requests that one slot may have open at least: one is worked on, the next is there when it is done."""


class RequestWindow:
    """The requests of a stream of unrolls.

    Args:
        batch_size: environments that one update learns from.
        max_lag: updates that the weights that acted may be old when they are learned from, at most.
        num_envs: environments per actor.
        num_actors: actor slots; None if their number changes.
    """

    def __init__(self, batch_size: int, max_lag: int, num_envs: int, num_actors: int | None) -> None:
        self._size = (max_lag + 1) * batch_size
        ahead = max_lag * batch_size // ((num_actors or batch_size) * num_envs)
        self.unrolls = max(1, min(MOST_AT_ONCE, ahead)) if num_envs <= NARROW else 1
        """Per request, one after the other with the same weights."""
        self.requests_per_slot = max(REQUESTS_PER_SLOT, ahead // self.unrolls)
        self._width = self.unrolls * num_envs
        self._unlearned: Counter[int] = Counter()
        """Environments asked for and not learned from, by member."""
        self._order: dict[int, deque[Request]] = {}
        """Requests whose answers have not been handed on, by member, oldest first."""

    def has_room(self, member: int) -> bool:
        """Whether another request of `member` keeps the bound."""
        return self._unlearned[member] + self._width <= self._size

    def sent(self, request: Request) -> None:
        """Note a request."""
        self._unlearned[request.member] += self._width
        self._order.setdefault(request.member, deque()).append(request)

    def learned(self, member: int, environments: int) -> None:
        """Note an update of `member` from so many environments."""
        self._unlearned[member] = max(0, self._unlearned[member] - environments)

    def lost(self, request: Request) -> None:
        """Note that a request will not be answered, or that its answer comes too late; nothing if it is noted."""
        order = self._order.get(request.member, deque())
        if request in order:
            order.remove(request)
            self._unlearned[request.member] -= self._width

    def forget(self, member: int) -> None:
        """Nothing that was asked for until now will be learned from: the member goes on with another one's weights."""
        self._order.pop(member, None)
        del self._unlearned[member]

    def next(self) -> Request | None:
        """The next answered request in its member's order, of the member that has waited longest; None if none is."""
        heads = [order[0] for order in self._order.values() if order and order[0].answer is not None]
        if not heads:
            return None
        first = min(heads, key=lambda request: request.index)
        self._order[first.member].popleft()
        return first

    def blocking(self) -> ActorSlot | None:
        """The slot whose answer those of others wait for, the oldest if there are several; None if none waits."""
        waiting = [order[0] for order in self._order.values() if any(request.answer is not None for request in order)]
        return min(waiting, key=lambda request: request.index).slot if waiting else None
