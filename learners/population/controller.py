"""The population's memory: recorded returns, clocks, settings and descent of all members, and when to decide.

It decides nothing itself (population.py does) and touches no learner: whoever hosts the members applies what it says.
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
    """One look at some members: all that the decisions depend on, and the decisions."""

    generation: int
    """Counts evaluations from 1."""
    evaluated: list[int]
    scores: list[list[float]]
    episodes: list[int]
    """Episodes that each member has finished so far."""
    values: list[Values]
    decisions: list[Decision]


class PopulationController:
    """Keeps what decisions need.

    Args:
        config: the scheme and its numbers.
        seed: the run's.
        members: how many, at least 2.
    """

    def __init__(self, config: PopulationConfig, seed: int, members: int) -> None:
        self.config, self.seed, self.members = config, seed, members
        self.generation = 0
        self.values = initial_values(config, seed, members)
        """The explored settings of every member, as they should be."""
        self.ancestors = list(range(members))
        """The member at the start whose weights each member descends from."""
        self.episodes = [0] * members
        self._windows: list[deque[float]] = [deque(maxlen=config.window) for _ in range(members)]
        self._due_at = [config.warmup] * members
        """Episodes of each member at which it is evaluated next."""

    def record(self, member: int, returns: NDArray[np.floating[Any]]) -> None:
        """Note the returns [K] of episodes that a member has finished; those that are no numbers are counted alone."""
        self.episodes[member] += len(returns)
        returns = returns[np.isfinite(returns)]
        # The shortest decimal that is the same float32: exact in the log, and a third of the digits.
        self._windows[member].extend(float(str(np.float32(x))) for x in returns[-self.config.window :])

    def due(self, active: Iterable[int]) -> list[int]:
        """Members of `active` whose time has come and whose window is full."""
        return [
            m for m in active if self.episodes[m] >= self._due_at[m] and len(self._windows[m]) == self.config.window
        ]

    def evaluate(self, evaluated: Sequence[int]) -> Evaluation:
        """Decide about these members, and remember what was decided."""
        self.generation += 1
        for member in evaluated:
            self._due_at[member] = self.episodes[member] + self.config.interval
        scores, values = self.scores(), [dict(each) for each in self.values]
        decisions = decide(self.config, self.seed, self.generation, evaluated, scores, values)
        self._note(decisions)
        return Evaluation(self.generation, list(evaluated), scores, list(self.episodes), values, decisions)

    def replace(self, failing: Sequence[int], healthy: Sequence[int], step: int) -> list[Decision]:
        """Decide what replaces members whose loss stays non-finite, and remember it; `step` seeds the randomness."""
        decisions = replace_failing(self.config, self.seed, step, failing, healthy, self.scores(), self.values)
        self._note(decisions)
        return decisions

    def scores(self) -> list[list[float]]:
        """The returns in every member's window, oldest first."""
        return [list(window) for window in self._windows]

    def _note(self, decisions: Sequence[Decision]) -> None:
        before = list(self.ancestors)
        for decision in decisions:
            if decision.copy:
                assert decision.opponent is not None
                self.values[decision.member] = dict(decision.new)
                self.ancestors[decision.member] = before[decision.opponent]
                self._windows[decision.member].clear()  # those returns were not earned by the new weights

    def state_dict(self) -> dict[str, Any]:
        """Everything later decisions depend on; the random stream is a function of seed and generation."""
        return {
            "generation": self.generation,
            "values": [dict(each) for each in self.values],
            "ancestors": list(self.ancestors),
            "episodes": list(self.episodes),
            "due_at": list(self._due_at),
            "windows": [np.array(window) for window in self._windows],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of a population of the same size."""
        self.generation = state["generation"]
        self.values = [dict(each) for each in state["values"]]
        self.ancestors, self.episodes = list(state["ancestors"]), list(state["episodes"])
        self._due_at = list(state["due_at"])
        finite = [window[np.isfinite(window)] for window in state["windows"]]  # older runs kept what is no number, too
        self._windows = [deque(window.tolist(), maxlen=self.config.window) for window in finite]
