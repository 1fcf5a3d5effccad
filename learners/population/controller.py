"""State of a population: recorded returns, episode counts, settings and ancestry of all members, and due decisions.

decisions.py makes the decisions, and the host of the members applies them to learners.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .config import PopulationConfig
from .decisions import Decision, decide, initial_values, replace_failing
from .search_space import Values


class Evaluation(NamedTuple):
    """Evaluation of some members: the decisions and everything that they depend on."""

    generation: int  # Index of the evaluation, from 1
    evaluated: list[int]
    scores: list[list[float]]
    episodes: list[int]  # Episodes finished by each member so far
    values: list[Values]
    decisions: list[Decision]


class PopulationController:
    """State that decisions depend on."""

    def __init__(self, config: PopulationConfig, seed: int, members: int) -> None:
        self.config, self.seed, self.members = config, seed, members
        self.generation = 0
        self.values = initial_values(config, seed, members)  # The explored settings of every member, as decided
        self.ancestors = list(range(members))  # Initial member from whose weights each member descends
        self.episodes = [0] * members
        self._windows: list[deque[float]] = [deque(maxlen=config.window) for _ in range(members)]
        self._due_at = [config.warmup] * members  # Number of episodes of each member at its next evaluation

    def record(self, member: int, returns: NDArray[np.floating[Any]]) -> None:
        """Record returns [K] of finished episodes of a member; nan returns are only counted."""
        self.episodes[member] += len(returns)
        returns = returns[np.isfinite(returns)]
        # The shortest decimal that rounds to the same float32: exact in the log, with a third of the digits.
        self._windows[member].extend(float(str(np.float32(x))) for x in returns[-self.config.window :])

    def due(self, active: Iterable[int]) -> list[int]:
        """Find the members of `active` that are due for evaluation and have a full window."""
        return [
            m for m in active if self.episodes[m] >= self._due_at[m] and len(self._windows[m]) == self.config.window
        ]

    def evaluate(self, evaluated: Sequence[int]) -> Evaluation:
        """Make decisions about these members, and record them."""
        self.generation += 1
        for member in evaluated:
            self._due_at[member] = self.episodes[member] + self.config.interval
        scores, values = self.scores(), [dict(settings) for settings in self.values]
        decisions = decide(self.config, self.seed, self.generation, evaluated, scores, values)
        self._record_decisions(decisions)
        return Evaluation(self.generation, list(evaluated), scores, list(self.episodes), values, decisions)

    def replace(self, failing: Sequence[int], healthy: Sequence[int], step: int) -> list[Decision]:
        """Decide on and record replacements of members whose loss stays non-finite; `step` seeds the randomness."""
        decisions = replace_failing(self.config, self.seed, step, failing, healthy, self.scores(), self.values)
        self._record_decisions(decisions)
        return decisions

    def scores(self) -> list[list[float]]:
        """List the returns in every member's window, oldest first."""
        return [list(window) for window in self._windows]

    def _record_decisions(self, decisions: Sequence[Decision]) -> None:
        before = list(self.ancestors)
        for decision in decisions:
            if decision.copy:
                assert decision.opponent is not None
                self.values[decision.member] = dict(decision.new)
                self.ancestors[decision.member] = before[decision.opponent]
                self._windows[decision.member].clear()  # the returns do not belong to the new weights

    def state_dict(self) -> dict[str, Any]:
        """Everything that later decisions depend on; the random stream is a function of seed and generation."""
        return {
            "generation": self.generation,
            "values": [dict(settings) for settings in self.values],
            "ancestors": list(self.ancestors),
            "episodes": list(self.episodes),
            "due_at": list(self._due_at),
            "windows": [np.array(window) for window in self._windows],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of a population of the same size."""
        self.generation = state["generation"]
        self.values = [dict(settings) for settings in state["values"]]
        self.ancestors, self.episodes = list(state["ancestors"]), list(state["episodes"])
        self._due_at = list(state["due_at"])
        finite = [window[np.isfinite(window)] for window in state["windows"]]  # older runs also stored nan
        self._windows = [deque(window.tolist(), maxlen=self.config.window) for window in finite]
