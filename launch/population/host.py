"""Population-based training in a run: executes the controller's decisions and records events."""

import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.files import AppendedFile, abandon_after
from ...learners.population.decisions import PopulationController
from ..config.run_config import RunConfig
from ..metrics.member import Member
from ..metrics.panel import Panel
from ..metrics.writer import MetricsWriter
from ..runs.directory import RunDirectory

# Metrics that are summed over members, and metrics of the pool, equal for all members
_SUMMED = ("perf/env_steps_per_second", "perf/learner_busy", "perf/queue_wait", "perf/actor_busy", "learner/skipped")
_SHARED = ("perf/actors", "perf/actor_failures", "perf/object_store_mb", "perf/policy_lag_max")


class PopulationHost:
    """The population of a run; the panel shows its messages, and `files` closes its writer.

    Events after `step`, the total step of all members in the checkpoint from which the run continues (all events of a
    new run, None), are moved to `population.abandoned.jsonl`.
    """

    def __init__(
        self,
        config: RunConfig,
        members: Sequence[Member],
        directory: RunDirectory,
        panel: Panel,
        step: int | None,
        files: ExitStack,
    ) -> None:
        self.config, self.members, self._warn = config, members, panel.message
        try:
            abandon_after(directory.population_file, -1 if step is None else step)  # a start event has step 0
        except OSError as problem:
            self._warn(f"cannot read the population's log: {problem}; training continues")
        self._log, self._log_failed = AppendedFile(lambda: directory.population_file), False
        self._writer = files.enter_context(MetricsWriter(directory.path, step or 0, self._warn))
        self.controller = PopulationController(config.pbt, config.seed, len(members))
        self._latest: dict[int, Mapping[str, float]] = {}  # Rows of members since the last row of the whole population
        self._configure()

    @property
    def steps(self) -> int:
        return sum(member.steps for member in self.members)

    def begin(self) -> None:
        pbt = self.config.pbt
        facts = {"members": len(self.members), "seed": self.config.seed, "scheme": pbt.scheme, "pbt": asdict(pbt)}
        self._event("start", **facts, values=self.controller.values)

    def record(self, member: Member, episodes: NDArray[np.floating[Any]]) -> None:
        self.controller.record(member.number, episodes[:, 1])

    def look(self) -> list[int]:
        """Execute all due evaluations and copies; return the changed members. Evaluations wait until the slowest member
        has made another update, so that members of equal speed are compared together."""
        updates = self._slowest()
        if updates == self._updates:
            return []
        self._updates = updates
        due = self.controller.due(member.number for member in self.members if not member.done)
        return self._evaluate(due) if due else []

    def metrics(self, member: Member) -> dict[str, float]:
        generation, ancestor = self.controller.generation, self.controller.ancestors[member.number]
        return {"population/generation": float(generation), "population/ancestor": float(ancestor)}

    def log(self, member: Member, metrics: Mapping[str, float]) -> dict[str, float]:
        """Record a row of one member; when all members have written one, write and return a row of the population."""
        self._latest[member.number] = metrics
        if any(m.number not in self._latest for m in self.members if not m.done or m.due()):
            return {}
        rows, self._latest = list(self._latest.values()), {}
        row = {name: sum(x.get(name, 0.0) for x in rows) for name in _SUMMED}
        row |= {name: max(x.get(name, 0.0) for x in rows) for name in _SHARED}
        if all(m.done for m in self.members) and not self.controller.generation:
            pbt = self.config.pbt
            text = f"members were never compared: none finished {pbt.first_due:,} episodes"
            self._warn(f"{text}; lower --pbt.warmup ({pbt.warmup:,}) and --pbt.window ({pbt.window:,})")
        returns = [m.accumulator.window().get("return") for m in self.members]
        row = spread(returns) | row
        self._writer.write(self.steps, row)
        return row

    def state_dict(self) -> dict[str, Any]:
        return self.controller.state_dict() | {"latest": {number: dict(row) for number, row in self._latest.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.controller.load_state_dict(state)
        self._latest = dict(state.get("latest", {}))  # older runs did not save them
        self._configure()
        self._event("resume", from_step=self.steps)

    def _configure(self) -> None:
        for member in self.members:
            member.configure(self.controller.values[member.number])
        self._updates = self._slowest()

    def _slowest(self) -> int:
        return min((member.updates for member in self.members if not member.done), default=-1)

    def _evaluate(self, due: list[int]) -> list[int]:
        controller = self.controller
        scores, values = controller.scores(), list(controller.values)
        made = controller.evaluate(due)
        facts: dict[str, Any] = {"generation": controller.generation, "evaluated": due, "scores": scores}
        facts |= {"member_steps": [member.steps for member in self.members], "episodes": controller.episodes}
        self._event("evaluation", **facts, values=values, decisions=[decision._asdict() for decision in made])
        copies = {decision.member: decision for decision in made if decision.copy}
        # All copies are made at once: a source that is itself replaced provides its previous weights.
        sources = {decision.opponent for decision in copies.values() if decision.opponent is not None}
        snapshots = {source: self.members[source].snapshot(lasting=source in copies) for source in sources}
        for member, decision in copies.items():
            assert decision.opponent is not None
            self.members[member].become(snapshots[decision.opponent], decision.new)
        for member, decision in copies.items():
            copy = {"generation": controller.generation, "member": member, "from": decision.opponent}
            self._event("copy", **copy, effective=decision.new)
        return list(copies)

    def _event(self, kind: str, **facts: Any) -> None:
        event = {"event": kind, "time": round(time.time(), 3), "step": self.steps, **facts}
        try:
            self._log.append(json.dumps(event, allow_nan=False).encode() + b"\n")
        except OSError as problem:
            if not self._log_failed:
                self._log_failed = True
                self._warn(f"cannot write the population's log: {problem}; training continues")


def spread(returns: Sequence[float | None]) -> dict[str, float]:
    """Best, median and worst return of the members; empty if no member has a return."""
    finite = [x for x in returns if x is not None and math.isfinite(x)]
    if not finite:
        return {}
    values = {"best": max(finite), "median": statistics.median(finite), "worst": min(finite)}
    return {f"population/{name}_return": value for name, value in values.items()}
