"""Who descends from whom in a population, from the events of its log, in the order in which they happened."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ..metrics.panel import short

SHOWN_ANCESTORS = 6
"""Ancestors of a member that are named in words, beside the first one."""


class Stretch(NamedTuple):
    """A piece of a member's life, from one evaluation or copy to the next."""

    member: int
    begin: int
    """Steps of the whole population, as is `end`."""
    end: int
    score: float
    """Mean return of the window at the evaluation that ended the stretch; until there is one, the score of the stretch
    that the weights come from; nan without either."""
    parent: int | None
    """Index of the stretch that the weights come from; None at the start."""


class Transfer(NamedTuple):
    """Weights that went from one member to another."""

    step: int
    generation: int | None
    """The evaluation that decided it; None where a member was replaced because its loss was not finite."""
    source: int
    target: int


class Lineage:
    """The family tree of a population, told event by event, beginning with the start event."""

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self.members = 0
        self.generation = 0
        self.step = 0
        self.closed: list[Stretch] = []
        self.transfers: list[Transfer] = []
        self._open: list[Stretch] = []
        self._sources: dict[int, int] = {}
        """Of the copies that the last evaluation decided: member -> the stretch whose weights it is to get."""
        for event in events:
            self.add(event)

    def add(self, event: Mapping[str, Any]) -> None:
        """The next event of the log; those that move no weights and judge nobody change only the clock."""
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
        """All stretches; the last `members` of them go on now, in the order of the members."""
        return self.closed + [stretch._replace(end=self.step) for stretch in self._open]

    def surviving(self) -> set[int]:
        """Indices of the stretches that some member's present weights come from."""
        result = set(range(len(self.closed), len(self.closed) + self.members))
        for stretch in self._open:
            result.update(self._before(stretch))
        return result

    def ancestry(self, member: int) -> list[Stretch]:
        """The stretches that a member's present weights come from, newest first, the present one included."""
        now = self._open[member]._replace(end=self.step)
        return [now, *(self.closed[index] for index in self._before(now))]

    def founder(self, member: int) -> int:
        """The member of the start that a member's present weights come from."""
        return self.ancestry(member)[-1].member

    def score(self, member: int) -> float:
        """The last score of the weights that a member has now; nan before the first."""
        return self._open[member].score

    def best(self) -> int:
        """The member whose weights have the highest score; of a copy and its source, the source."""
        return max(range(self.members), key=lambda i: (_or_lowest(self.score(i)), -self._open[i].begin, -i))

    def _evaluate(self, event: Mapping[str, Any]) -> None:
        self.generation = event["generation"]
        for member in event["evaluated"]:
            self._end(member, mean(event["scores"][member]))
        # The copies of one evaluation are meant at once: each takes what its source was before any of them.
        copies = [decision for decision in event["decisions"] if decision["copy"]]
        self._sources = {copy["member"]: self._end(copy["opponent"]) for copy in copies}

    def _before(self, stretch: Stretch) -> Iterator[int]:
        while stretch.parent is not None:
            yield stretch.parent
            stretch = self.closed[stretch.parent]

    def _end(self, member: int, score: float | None = None) -> int:
        """Close a member's stretch now and go on with the same weights in a new one; the closed one's index."""
        stretch = self._open[member]
        if score is None and stretch.begin == self.step and stretch.parent is not None:
            return stretch.parent
        self.closed.append(stretch._replace(end=self.step, score=stretch.score if score is None else score))
        self._open[member] = Stretch(member, self.step, self.step, self.closed[-1].score, len(self.closed) - 1)
        return len(self.closed) - 1


def mean(scores: Sequence[float]) -> float:
    """Mean of episode returns; nan of none."""
    return math.fsum(scores) / len(scores) if scores else math.nan


def families(lineage: Lineage) -> dict[int, list[int]]:
    """The members of now by the member of the start that they descend from, largest family first."""
    result: dict[int, list[int]] = {}
    for member in range(lineage.members):
        result.setdefault(lineage.founder(member), []).append(member)
    return dict(sorted(result.items(), key=lambda family: (-len(family[1]), family[0])))


def descent(lineage: Lineage, member: int) -> str:
    """Where a member's weights come from, in words: "<- 4 (at 887k) <- 7 (at 500k)", newest first."""
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
