"""The places of a pool's actors, and what they were asked for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .reaper import Whereabouts


@dataclass(eq=False)
class Seat:
    """The place of one actor, which processes take one after another."""

    number: int
    life: int = -1
    """Processes that had this seat before."""
    handle: Any = None
    """The process at work or starting; None while the seat is empty."""
    starting: Any = None
    """Answered when the process is ready; None then."""
    since: float = 0.0
    """Monotonic time of the last sign of life; of an empty seat, the time from which it may be taken again."""
    process: Whereabouts | None = None
    """Where the process at work is; None while it is starting or the seat is empty."""
    requests: int = 0
    """Those of its requests that are open."""
    told: dict[int, Any] = field(default_factory=dict[int, Any])
    """The weights of each member that the process was sent last, as they lie in the object store."""

    @property
    def at_work(self) -> bool:
        return self.handle is not None and self.starting is None


class Request(NamedTuple):
    """Unrolls that were asked for."""

    seat: Seat
    member: int
    unrolls: int


class Wish(NamedTuple):
    """What is asked for."""

    requests: Callable[[Seat], int]
    """How many are to be open per seat."""
    member: Callable[[], int]
    """Whom the next one is for."""
    unrolls: int
    """How many each of them is for."""
