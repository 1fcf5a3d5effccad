"""Check of a population's log: repeats every decision from its recorded scores and traces every value."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...learners.population.config import PopulationConfig
from ...learners.population.decisions import Decision, decide, initial_values
from ...learners.population.search_space import Values
from ..config.settings.plain import from_dict

PRECISION = 1e-9  # Relative tolerance: a p-value's last digits depend on scipy's version

Event = dict[str, Any]


class Replay:
    """Replay of a log's events, one per line; `differences` lists where the two disagree."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.differences: list[str] = []
        self.evaluations = self.decisions = self.copies = 0
        self.values: list[Values] = []  # Every member's explored settings according to the events so far
        self._config, self._seed = PopulationConfig(), 0
        self._due: dict[int, tuple[int, Decision]] = {}
        """Copies decided but not yet executed: member -> line of the evaluation and decision. At the very end of a log
        they may still be pending."""
        steps = {"start": self._start, "evaluation": self._evaluation, "copy": self._copy}
        steps |= {"replacement": self._replacement, "resume": lambda *_: None}
        for line, event in enumerate(events, 1):
            if event["event"] != "copy":
                for member, (decided, decision) in self._due.items():
                    text = f"the copy from {decision.opponent} that was decided does not follow"
                    self._differ(decided, member, f"{text}; a {event['event']} event does")
                self._due.clear()
            steps[event["event"]](line, event)

    def _start(self, line: int, event: Event) -> None:
        settings = {key: value for key, value in event["pbt"].items() if key != "patience"}  # in older logs
        self._config, self._seed = from_dict(PopulationConfig, settings, "pbt."), event["seed"]
        self.values = initial_values(self._config, self._seed, event["members"])
        self._take_values(line, event, "value at the start")

    def _evaluation(self, line: int, event: Event) -> None:
        self.evaluations += 1
        if event["generation"] != self.evaluations:
            self._differ(line, None, f"generation is {event['generation']} in the log, {self.evaluations} by counting")
        self._take_values(line, event, "value before the evaluation")
        inputs = event["generation"], event["evaluated"], event["scores"], event["values"]
        logged = {decision["member"]: decision for decision in event["decisions"]}
        for made in decide(self._config, self._seed, *inputs):
            self.decisions += 1
            if made.copy:
                self._due[made.member] = (line, made)
            if made.member in logged:
                self._compare(line, made.member, logged.pop(made.member), made._asdict())
            else:
                self._differ(line, made.member, "no decision in the log, one by replay")
        for member in logged:
            self._differ(line, member, "a decision in the log, none by replay")

    def _copy(self, line: int, event: Event) -> None:
        self.copies += 1
        member = event["member"]
        if member in self._due:
            _, decision = self._due.pop(member)
            self._compare(line, member, event, {"from": decision.opponent, "effective": decision.new})
        else:
            self._differ(line, member, "a copy in the log that no evaluation decided")
        self.values[member] = dict(event["effective"])

    def _replacement(self, line: int, event: Event) -> None:
        """Accept a copy to a member with non-finite losses, which earlier versions made."""
        self.copies += 1
        self.values[event["member"]] = dict(event["new"])

    def _take_values(self, line: int, event: Event, label: str) -> None:
        """Compare an event's settings of all members with the replayed ones, and continue with the event's."""
        for member, (logged, expected) in enumerate(zip(event["values"], self.values, strict=True)):
            names = sorted(logged.keys() | expected.keys())
            self._compare(line, member, logged, {name: expected.get(name) for name in names}, f"{label}: ")
        self.values = [dict(values) for values in event["values"]]

    def _compare(
        self, line: int, member: int, logged: Mapping[str, Any], made: Mapping[str, Any], prefix: str = ""
    ) -> None:
        for name, value in made.items():
            if not same(logged.get(name), value):
                self._differ(line, member, f"{prefix}{name} is {logged.get(name)!r} in the log, {value!r} by replay")

    def _differ(self, line: int, member: int | None, difference: str) -> None:
        self.differences.append(f"line {line}{'' if member is None else f', member {member}'}: {difference}")


def same(logged: Any, made: Any) -> bool:
    """Whether two plain values are equal; floats up to PRECISION."""
    if isinstance(made, dict) and isinstance(logged, dict):
        return made.keys() == logged.keys() and all(same(logged[name], made[name]) for name in made)
    if isinstance(made, float) and isinstance(logged, int | float):
        return math.isclose(logged, made, rel_tol=PRECISION)
    return logged == made
