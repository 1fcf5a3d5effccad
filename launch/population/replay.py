"""Check of a population's log: repeats every decision from its recorded scores and traces every value."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ...learners.population.config import PopulationConfig
from ...learners.population.decisions import Decision, decide, initial_values, replace_failing
from ...learners.population.search_space import Values
from ..config.settings.plain import from_dict
from .history import Entry

PRECISION = 1e-9  # Relative tolerance: a p-value's last digits depend on scipy's version


class Replay:
    """Replay of a log; `differences` lists where the two disagree."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.differences: list[str] = []  # Differences between the log and its replay
        self.evaluations = self.decisions = self.copies = 0
        self.values: list[Values] = []  # Every member's explored settings according to the events so far
        self._config, self._seed = PopulationConfig(), 0
        self._due: dict[int, tuple[Entry, Decision]] = {}
        """Copies decided but not yet executed: member -> evaluation and decision."""
        for entry in entries:
            if entry.kind != "copy":
                self._report_due(entry.kind)
            try:
                self._follow(entry)
            except (ValueError, TypeError, LookupError, ArithmeticError) as problem:
                self._differ(entry, None, f"the {entry.kind} event allows no replay: {problem!r}")

    def _follow(self, entry: Entry) -> None:
        steps = {"start": self._start, "evaluation": self._evaluation, "copy": self._copy, "resume": lambda _: None}
        (steps | {"replacement": self._replacement})[entry.kind](entry)

    def _start(self, entry: Entry) -> None:
        event = entry.event
        self._config, self._seed = from_dict(PopulationConfig, event["pbt"], "pbt."), event["seed"]
        self.values = initial_values(self._config, self._seed, event["members"])
        self._take_values(entry, "value at the start")

    def _evaluation(self, entry: Entry) -> None:
        event = entry.event
        self.evaluations += 1
        if event["generation"] != self.evaluations:
            self._differ(entry, None, f"generation is {event['generation']} in the log, {self.evaluations} by counting")
        self._take_values(entry, "value before the evaluation")
        inputs = event["generation"], event["evaluated"], event["scores"], event["values"]
        logged = {decision["member"]: decision for decision in event["decisions"]}
        for made in decide(self._config, self._seed, *inputs):
            self.decisions += 1
            if made.copy:
                self._due[made.member] = (entry, made)
            if made.member in logged:
                self._compare(entry, made.member, logged.pop(made.member), made._asdict())
            else:
                self._differ(entry, made.member, "no decision in the log, one by replay")
        for member in logged:
            self._differ(entry, member, "a decision in the log, none by replay")

    def _copy(self, entry: Entry) -> None:
        event, member = entry.event, entry.event["member"]
        self.copies += 1
        _, decision = self._due.pop(member, (entry, None))
        if decision is None:
            self._differ(entry, member, "a copy in the log that no evaluation decided")
        else:
            self._compare(entry, member, event, {"from": decision.opponent, "effective": decision.new})
        self.values[member] = dict(event["effective"])

    def _replacement(self, entry: Entry) -> None:
        event, member = entry.event, entry.event["member"]
        self.decisions += 1
        self.copies += 1
        inputs = event["step"], [member], event["healthy"], event["scores"], self.values
        for made in replace_failing(self._config, self._seed, *inputs):
            expected = {"from": made.opponent, "reason": made.reason, "old": made.old, "new": made.new}
            self._compare(entry, member, event, expected)
        self.values[member] = dict(event["new"])

    def _compare(
        self, entry: Entry, member: int, logged: Mapping[str, Any], made: Mapping[str, Any], prefix: str = ""
    ) -> None:
        for name, value in made.items():
            if not same(logged.get(name), value):
                self._differ(entry, member, f"{prefix}{name} is {logged.get(name)!r} in the log, {value!r} by replay")

    def _report_due(self, kind: str) -> None:
        """Check that copies follow their evaluation; at the very end of a log they may still be pending."""
        for member, (entry, decision) in self._due.items():
            text = f"the copy from {decision.opponent} that was decided does not follow; a {kind} event does"
            self._differ(entry, member, text)
        self._due.clear()

    def _take_values(self, entry: Entry, label: str) -> None:
        """Compare an event's settings of all members with the replayed ones, and continue with the event's."""
        logged: list[Values] = entry.event["values"]
        if len(logged) != len(self.values):
            self._differ(entry, None, f"values of {len(logged)} members in the log, {len(self.values)} by replay")
        for member, (recorded, expected) in enumerate(zip(logged, self.values, strict=False)):
            names = sorted(recorded.keys() | expected.keys())
            self._compare(entry, member, recorded, {name: expected.get(name) for name in names}, f"{label}: ")
        self.values = [dict(values) for values in logged]

    def _differ(self, entry: Entry, member: int | None, difference: str) -> None:
        self.differences.append(f"line {entry.line}{'' if member is None else f', member {member}'}: {difference}")


def same(logged: Any, made: Any) -> bool:
    """Whether two plain values are equal; floats up to PRECISION."""
    if isinstance(made, dict) and isinstance(logged, dict):
        return made.keys() == logged.keys() and all(same(logged[name], made[name]) for name in made)
    if isinstance(made, float) and isinstance(logged, int | float) and not isinstance(logged, bool):
        return math.isclose(logged, made, rel_tol=PRECISION)
    return type(logged) is type(made) and logged == made
