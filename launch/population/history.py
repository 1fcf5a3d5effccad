"""The log of a population read back: its events with their line numbers, each checked to be complete."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ...base.errors import EngramError, file_errors
from ..run.run_directory import RunDirectory
from ..run.settings.plain import typed
from .lineage import Lineage

_Settings = dict[str, float]
FIELDS: dict[str, dict[str, Any]] = {
    "start": {"members": int, "seed": int, "scheme": str, "pbt": dict[str, Any], "values": tuple[_Settings, ...]},
    "evaluation": {
        **{
            "generation": int,
            "evaluated": tuple[int, ...],
            "scores": tuple[list[Any], ...],
            "values": tuple[_Settings, ...],
        },
        **{"member_steps": tuple[int, ...], "episodes": tuple[int, ...], "decisions": tuple[dict[str, Any], ...]},
    },
    "copy": {"generation": int, "member": int, "from": int, "effective": _Settings},
    "replacement": {
        **{"member": int, "from": int, "reason": str, "healthy": list[Any], "scores": tuple[list[Any], ...]},
        **{"old": _Settings, "new": _Settings},
    },
    "resume": {"from_step": int},
}
"""Fields of every kind of event and their types, in addition to `event`, `time` and `step`."""
_DAMAGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


class Entry(NamedTuple):
    """An event and its line number, from 1."""

    line: int
    event: dict[str, Any]

    @property
    def kind(self) -> str:
        """A key of FIELDS."""
        return self.event["event"]


def check(run: RunDirectory) -> None:
    """Raise EngramError naming the damage if the log of a run to resume is damaged."""
    events = [entry.event for entry in read(run)]
    members, expected = lineage_of(run, events).members, run.config().get("population")
    if members != expected:
        raise EngramError(f"{run.population_file} is damaged: it has {members} members, the run {expected}")


def lineage_of(run: RunDirectory, events: Iterable[Mapping[str, Any]]) -> Lineage:
    """The family tree from the events of a log. Raises EngramError if they are inconsistent."""
    try:
        return Lineage(events)
    except _DAMAGE as problem:
        raise EngramError(f"{run.population_file} is damaged: its events allow no lineage ({problem!r})") from problem


def read(run: RunDirectory) -> Iterator[Entry]:
    """The events of a population's log, first to last, one line in memory at a time.

    Raises EngramError if the run has no population, or naming the line that is not an event. A last line without an
    end, as after a power failure, is ignored. A start event may be repeated right after itself: a run that restarts
    without a checkpoint and cannot move the first one away leaves two.
    """
    file = run.population_file
    if not file.is_file():
        raise EngramError(f"{run.path} is a run without a population: it has no {file.name}")
    members = last = 0
    start: dict[str, Any] = {}
    with file_errors(f"cannot read {file}"), file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                continue
            try:
                event = json.loads(line)
                if start and event | {"time": 0} == start | {"time": 0}:
                    continue
                _check(event, members, last)
            except _DAMAGE as problem:
                raise EngramError(f"{file} line {number} is damaged: {problem}") from problem
            start = event if event["event"] == "start" else {}
            members, last = members or event["members"], event["step"]
            yield Entry(number, event)
    if not members:
        raise EngramError(f"{file} is damaged: it has no start event")


def _check(event: dict[str, Any], members: int, last: int) -> None:
    """Raise ValueError or LookupError for an event that cannot follow; `members` is 0 before the start event."""
    kind = event["event"]
    if (members == 0) != (kind == "start"):
        raise EngramError(f"a {kind} event; the first event, and only the first, is start")
    for name, hint in ({"time": float, "step": int} | FIELDS[kind]).items():
        typed(hint, event[name], name)
    if event["step"] < last:
        raise EngramError(f"it is of step {event['step']}, after one of {last}")
    for name in {"member", "from"} & event.keys():
        if event[name] not in range(members):
            raise EngramError(f"{name} is {event[name]!r}; allowed: 0..{members - 1}")
    if kind == "start" and not 1 <= event["members"] == len(event["values"]):
        raise EngramError(f"members is {event['members']}, values are of {len(event['values'])}")
