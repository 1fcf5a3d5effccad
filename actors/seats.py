"""The places of a pool's actors, and what they were asked for."""

from dataclasses import dataclass
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

    @property
    def at_work(self) -> bool:
        return self.handle is not None and self.starting is None


class Request(NamedTuple):
    """An unroll that was asked for."""

    seat: Seat
    member: int
