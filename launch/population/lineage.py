"""The lineage of a population, from the events of its log in order."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ..metrics.panel import short

SHOWN_ANCESTORS = 6  # Number of a member's ancestors to name, in addition to the first one


class Stretch(NamedTuple):
    """A segment of a member's history, from one evaluation or copy to the next."""

    member: int
    begin: int  # Start in steps of the whole population, like `end`
    end: int
    score: float
    """Mean return of the window at the evaluation that ended the stretch; before it, the score of the source
    stretch; nan without either."""
    parent: int | None  # Index of the source stretch of the weights; None at the start


class Transfer(NamedTuple):
    """A copy of weights from one member to another."""

    step: int
    generation: int | None
    """The evaluation that decided the copy; None if the member was replaced because its loss was not finite."""
    source: int
    target: int


class Lineage:
    """The family tree of a population, built event by event, beginning with the start event."""

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self.members = 0
        self.generation = 0
        self.step = 0
        self.closed: list[Stretch] = []
        self.transfers: list[Transfer] = []
        self._open: list[Stretch] = []
        self._sources: dict[int, int] = {}  # Copies decided by the last evaluation: member -> source stretch
        for event in events:
            self.add(event)

    def add(self, event: Mapping[str, Any]) -> None:
        """Process the next event of the log; events other than copies and evaluations change only the clock."""
        kind = event["event"]
        self.step = max(self.step, event["step"])
        if kind == "start":
            self.members = event["members"]
            self._open = [Stretch(i, 0, 0, math.nan, None) for i in range(self.members)]
        elif kind == "evaluation":
            self._evaluate(event)
        elif kind in ("copy", "replacement"):
            source, target = event["from"], event["member"]
            parent = self._sources.pop(target, None) if kind == "copy" else None
            parent = self._end(source) if parent is None else parent
            self._end(target)
            self.transfers.append(Transfer(self.step, event.get("generation"), source, target))
            self._open[target] = Stretch(target, self.step, self.step, self.closed[parent].score, parent)

    def stretches(self) -> list[Stretch]:
        """All stretches; the last `members` of them are the current ones, in the order of the members."""
        return self.closed + [stretch._replace(end=self.step) for stretch in self._open]

    def surviving(self) -> set[int]:
        """Indices of the stretches from which current weights descend."""
        result = set(range(len(self.closed), len(self.closed) + self.members))
        for stretch in self._open:
            result.update(self._before(stretch))
        return result

    def ancestry(self, member: int) -> list[Stretch]:
        """The stretches from which a member's current weights descend, newest first, with the current one."""
        now = self._open[member]._replace(end=self.step)
        return [now, *(self.closed[index] for index in self._before(now))]

    def founder(self, member: int) -> int:
        """The initial member from which a member's current weights descend."""
        return self.ancestry(member)[-1].member

    def score(self, member: int) -> float:
        """The last score of a member's current weights; nan before the first."""
        return self._open[member].score

    def best(self) -> int:
        """The member whose weights have the highest score; the source if a copy has the same score."""
        return max(range(self.members), key=lambda i: (_or_lowest(self.score(i)), -self._open[i].begin, -i))

    def _evaluate(self, event: Mapping[str, Any]) -> None:
        self.generation = event["generation"]
        for member in event["evaluated"]:
            self._end(member, mean(event["scores"][member]))
        # The copies of one evaluation happen at once: each uses its source's weights from before all of them.
        copies = [decision for decision in event["decisions"] if decision["copy"]]
        self._sources = {copy["member"]: self._end(copy["opponent"]) for copy in copies}

    def _before(self, stretch: Stretch) -> Iterator[int]:
        while stretch.parent is not None:
            yield stretch.parent
            stretch = self.closed[stretch.parent]

    def _end(self, member: int, score: float | None = None) -> int:
        """Close a member's stretch and open a new one with the same weights; returns the index of the closed one."""
        stretch = self._open[member]
        if score is None and stretch.begin == self.step and stretch.parent is not None:
            return stretch.parent
        self.closed.append(stretch._replace(end=self.step, score=stretch.score if score is None else score))
        self._open[member] = Stretch(member, self.step, self.step, self.closed[-1].score, len(self.closed) - 1)
        return len(self.closed) - 1


def mean(scores: Sequence[float]) -> float:
    """Mean of episode returns; nan without episodes."""
    return math.fsum(scores) / len(scores) if scores else math.nan


def families(lineage: Lineage) -> dict[int, list[int]]:
    """The current members by the initial member from which they descend, largest family first."""
    result: dict[int, list[int]] = {}
    for member in range(lineage.members):
        result.setdefault(lineage.founder(member), []).append(member)
    return dict(sorted(result.items(), key=lambda family: (-len(family[1]), family[0])))


def descent(lineage: Lineage, member: int) -> str:
    """Text on the descent of a member's weights: "<- 4 (at 887k) <- 7 (at 500k)", newest first."""
    chain = lineage.ancestry(member)
    moves = [
        f"<- {older.member} (at {short(younger.begin)})"
        for younger, older in pairwise(chain)
        if younger.member != older.member
    ]
    if not moves:
        return "its own"
    if len(moves) > SHOWN_ANCESTORS + 1:
        moves[SHOWN_ANCESTORS:-1] = [f"<- {len(moves) - SHOWN_ANCESTORS - 1} more"]
    return " ".join(moves)


def _or_lowest(score: float) -> float:
    return -math.inf if math.isnan(score) else score
