"""The log of a population read back: its events with the numbers of their lines, each checked to be whole."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..run.run_directory import RunDirectory, RunDirectoryError
from .lineage import Lineage

FIELDS: dict[str, tuple[str, ...]] = {
    "start": ("members", "seed", "scheme", "pbt", "values"),
    "evaluation": ("generation", "evaluated", "scores", "member_steps", "episodes", "values", "decisions"),
    "copy": ("generation", "member", "from", "effective"),
    "replacement": ("member", "from", "reason", "healthy", "scores", "old", "new"),
    "resume": ("from_step",),
}
"""Fields of every kind of event, besides `event`, `time` and `step`."""


SHAPES: dict[str, Any] = {
    **{name: int for name in ("step", "members", "seed", "generation")},
    **{name: [int] for name in ("evaluated", "member_steps", "episodes")},
    **{name: {} for name in ("effective", "new", "old")},
    **{"pbt": dict, "values": [{}], "scores": [list], "decisions": [dict]},
}
"""What a reader relies on: a type, a list of it, or {}: settings, which are numbers by name."""


class Entry(NamedTuple):
    """One event and where it stands."""

    line: int
    """Number of the line, from 1."""
    event: dict[str, Any]

    @property
    def kind(self) -> str:
        """A key of FIELDS."""
        return self.event["event"]


def check(run: RunDirectory) -> None:
    """Raise RunDirectoryError naming what is wrong with the log of a run that is to go on, if anything is."""
    events = [entry.event for entry in read(run)]
    if not events:
        raise RunDirectoryError(f"{run.population_file} is damaged: it has no start event")
    members = lineage_of(run, events).members
    if members != (expected := run.config().get("population")):
        raise RunDirectoryError(f"{run.population_file} is damaged: it has {members} members, the run {expected}")


def lineage_of(run: RunDirectory, events: Iterable[Mapping[str, Any]]) -> Lineage:
    """The family tree that the events of a log tell. Raises RunDirectoryError if they cannot have happened."""
    try:
        return Lineage(events)
    except (TypeError, ValueError, LookupError, AttributeError) as problem:
        what = f"{type(problem).__name__}: {problem}"
        raise RunDirectoryError(f"{run.population_file} is damaged: its events allow no lineage ({what})") from problem


def read(run: RunDirectory) -> Iterator[Entry]:
    """The events of a population's log, first to last, one line in memory at a time.

    Raises RunDirectoryError if the run has no population, or naming the line that is no event. A last line without an
    end is what a power failure leaves, and no event. A start event may be there again right after itself: a run that
    begins again, without a checkpoint, and cannot set the first one aside leaves two.
    """
    file = run.population_file
    if not file.is_file():
        raise RunDirectoryError(f"{run.path} is a run without a population: it has no {file.name}")
    try:
        with file.open("rb") as lines:
            members = last = 0
            start: dict[str, Any] = {}
            for number, line in enumerate(lines, 1):
                if line.endswith(b"\n"):
                    if start and _same(line, start):
                        continue
                    event = _event(line, f"{file} line {number}", members)
                    start = event if event["event"] == "start" else {}
                    if event["step"] < last:
                        raise RunDirectoryError(f"{file} line {number} is of step {event['step']}, after one of {last}")
                    members, last = members or event["members"], event["step"]
                    yield Entry(number, event)
    except OSError as problem:
        raise RunDirectoryError(f"cannot read {file}: {problem.strerror}") from problem


def _same(line: bytes, event: Mapping[str, Any]) -> bool:
    """Whether a line is this event once more, at whatever time."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found | {"time": 0} == {**event, "time": 0}


def _event(line: bytes, where: str, members: int) -> dict[str, Any]:
    """An event; `members` is how many there are, 0 before the start event."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise RunDirectoryError(f"{where} is not JSON: {problem}") from problem
    kind = event.get("event") if isinstance(event, dict) else None
    if not isinstance(kind, str) or kind not in FIELDS:
        raise RunDirectoryError(f"{where} is no event: its kind is {kind!r}; there are: {', '.join(FIELDS)}")
    if (members == 0) != (kind == "start"):
        raise RunDirectoryError(f"{where} is a {kind} event; the first event, and only the first, is start")
    missing = [name for name in ("time", "step", *FIELDS[kind]) if name not in event]
    if missing:
        raise RunDirectoryError(f"{where}: the {kind} event has no {missing[0]!r}")
    for name in ("member", "from"):
        if name in event and event[name] not in range(members):
            raise RunDirectoryError(f"{where}: {name} is {event[name]!r}; allowed: 0..{members - 1}")
    for name in event.keys() & SHAPES.keys():
        if not _fits(event[name], SHAPES[name]):
            raise RunDirectoryError(f"{where}: {name} is {event[name]!r}, which it cannot be")
    if kind == "start" and (event["members"] < 1 or len(event["values"]) != event["members"]):
        raise RunDirectoryError(f"{where}: members is {event['members']}, values are of {len(event['values'])}")
    return event


def _fits(value: Any, shape: Any) -> bool:
    """Whether a value is of one of SHAPES."""
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(each, shape[0]) for each in value)  # pyright: ignore
    if shape == {}:
        return isinstance(value, dict) and all(isinstance(each, int | float) for each in value.values())  # pyright: ignore
    return isinstance(value, shape) and not isinstance(value, bool)
