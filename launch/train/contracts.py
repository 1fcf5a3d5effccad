"""Contracts of the optional parts of a training loop."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...actors.unroll import Unroll
from .member import Member


class Population(Protocol):
    """Contract of the part that lets the members of a run learn from each other."""

    def metrics(self, member: Member) -> dict[str, float]:
        """Metrics of a member's place in the population, for its next row."""
        ...

    def record(self, member: Member, episodes: NDArray[np.floating[Any]]) -> None:
        """Note the episodes that a member has finished, as `Unroll.episodes` has them."""
        ...

    def look(self) -> list[int]:
        """Carry out what follows from the last update; returns the members whose weights it has changed."""
        ...

    def log(self, member: Member, metrics: Mapping[str, float]) -> dict[str, float]:
        """Note a row of one member's; a row about all when the last one has written, else nothing."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that a continued run needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`; the members are loaded already."""
        ...


class Watcher(Protocol):
    """Contract of the part that looks at the members' memories."""

    def look(self, member: Member, before: int, at_step: Callable[[], None]) -> None:
        """Called after an update of a member that had learnt from so many steps before it.

        Calls `at_step` after each step of its own environments; what that raises ends the call.
        """
        ...

    def receive(self, member: Member, unroll: Unroll) -> None:
        """Called with every unroll on its way to a member."""
        ...
