"""Reading of a population's log: events with their line numbers."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...base.errors import EngramError, file_errors, refuse
from ..runs.directory import RunDirectory
from .lineage import Lineage


class Entry(NamedTuple):
    """An event and its line number, from 1."""

    line: int
    event: dict[str, Any]

    @property
    def kind(self) -> str:
        """start, evaluation, copy, replacement or resume."""
        return self.event["event"]


@contextmanager
def damage(name: str) -> Generator[None]:
    """Convert the body's exception for invalid content to EngramError: `name is damaged: exception`."""
    try:
        yield
    except EngramError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as problem:
        kind = "" if type(problem) is ValueError else f"{type(problem).__name__}: "
        raise EngramError(f"{name} is damaged: {kind}{problem}") from problem


def check(run: RunDirectory) -> None:
    """Raise EngramError naming the damage if the log of a run to resume is damaged."""
    with damage(str(run.population_file)):
        members, expected = Lineage(entry.event for entry in read(run)).members, run.config().get("population")
        if members != expected:
            raise ValueError(f"it has {members} members, the run {expected}")


def read(run: RunDirectory) -> Iterator[Entry]:
    """Yield the events of a population's log, first to last, with one line in memory at a time.

    Raises EngramError if the run has no population, or naming a line that is not an event. An incomplete last line,
    as after a power failure, is ignored. A start event may be repeated immediately: a run that restarts without a
    checkpoint and cannot move the first event away leaves two.
    """
    file = run.population_file
    refuse(not file.is_file(), f"{run.path} is a run without a population: it has no {file.name}")
    start: dict[str, Any] = {}
    number = 0
    with file_errors(f"cannot read {file}"), file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                continue
            with damage(f"{file} line {number}"):
                event = json.loads(line)
                if (event["event"] == "start") != (number == 1):
                    if event | {"time": 0} == start | {"time": 0}:
                        continue
                    raise ValueError(f"a {event['event']} event; the first event, and only the first, is start")
                start = start or event
            yield Entry(number, event)
    refuse(not number, f"{file} is damaged: it has no start event")
