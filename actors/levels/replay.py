"""Prioritized level replay (Jiang, Grefenstette & Rocktaschel 2021): episodes in levels with learning potential.

A level is the state of its environment's random stream at the beginning of the episode. Its score is the mean absolute
one-step error of the behavior policy's values in the level's latest episode (one of the scores in the paper's
appendix),

    S = mean_t |r_{t+1} + gamma V_{t+1} - V_t|        with V_{t+1} = 0 where t + 1 is terminal

and a stored level i is replayed with probability (equations 1 to 3 of the paper)

    P(i) = (1 - rho) P_S(i) + rho P_C(i),    P_S(i) ~ (1 / rank(S_i))^(1 / beta),    P_C(i) ~ c - C_i

where c is the number of episodes begun and C_i its value when level i last began.

The other score is learnability (Rutherford et al. 2024, "No regrets: investigating and improving regret approximations
for curriculum discovery", equation 1), which is 0 for levels that are always or never solved,

    S = p (1 - p),    p = (s + 1) / (n + 2),    P_S(i) ~ S_i

for a level solved s times in n episodes; p is the posterior mean under a uniform prior.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .config import LevelsConfig

BETA, RHO = 0.1, 0.1  # Temperature of the ranks and weight of staleness, as in the paper

Flags = NDArray[np.bool_]


class ReplayState(NamedTuple):
    """State of level replay, with K stored levels and N environments."""

    levels: NDArray[np.uint64]  # [K]: stored levels
    scores: NDArray[np.float64]  # [K]: S
    begun: NDArray[np.int64]  # [K]: C; -1 in a free slot
    playing: NDArray[np.uint64]  # [N]: the level of each environment
    known: Flags  # [N]: whether the level is known; an environment's first level is not
    own: NDArray[np.uint64]  # [N]: state from which the environment's own stream continues after a replayed level
    again: Flags  # [N]: whether the level is a replay
    values: NDArray[np.float64]  # [N]: V at the previous step
    errors: NDArray[np.float64]  # [N]: sum of absolute value errors in this episode
    steps: NDArray[np.int64]  # [N]: number of these errors; -1 before the episode's first step.
    plays: NDArray[np.int64]  # [K]: n
    solves: NDArray[np.int64]  # [K]: s
    clock: NDArray[np.int64]  # [1]: c
    seed: NDArray[np.uint64]  # Seed of the choices


class Replay:
    """Level replay for one actor's environments.

    Args:
        levels: configuration.
        discount: gamma.
        seed: seed of the choices.
        num_envs: number of environments.
        reward_clip: bound on the rewards in the returns that values estimate; 0 for none.
    """

    def __init__(
        self, levels: LevelsConfig, discount: float, seed: tuple[int, ...], num_envs: int, reward_clip: float = 0.0
    ) -> None:
        self.learnability = levels.level_replay_score == "learnability"
        self.share, self.discount, self.most = levels.level_replay, discount, reward_clip or np.inf
        size = levels.level_replay_size
        self.state = ReplayState(
            levels=np.zeros(size, np.uint64),
            scores=np.zeros(size, np.float64),
            begun=np.full(size, -1, np.int64),
            playing=np.zeros(num_envs, np.uint64),
            known=np.zeros(num_envs, np.bool_),
            own=np.zeros(num_envs, np.uint64),
            again=np.zeros(num_envs, np.bool_),
            values=np.zeros(num_envs, np.float64),
            errors=np.zeros(num_envs, np.float64),
            steps=np.full(num_envs, -1, np.int64),
            plays=np.zeros(size, np.int64),
            solves=np.zeros(size, np.int64),
            clock=np.zeros(1, np.int64),
            seed=np.array(seed, np.uint64),
        )

    def see(self, env: Any, values: NDArray[np.floating[Any]], streams: NDArray[Any], solved: Flags) -> None:
        """Process a step [N] of the environments and its values; where an episode has ended, set `streams` to the level
        of the next one. `solved` marks which of the episodes that ended at this step were solved. Call this method
        after the agent's step and before the environments' step, which begins new episodes."""
        state = self.state
        within = state.steps >= 0
        target = np.clip(env.reward, -self.most, self.most) + self.discount * np.where(env.terminated, 0.0, values)
        state.errors[within] += np.abs(target - state.values)[within]
        state.steps[:] += 1
        state.values[:] = values
        ended = np.flatnonzero(env.terminated | env.truncated)
        if len(ended):
            for i in ended:
                if state.known[i] and state.steps[i]:
                    self._store(state.playing[i], state.errors[i] / state.steps[i], bool(solved[i]))
            self._choose(ended, streams)
            state.errors[ended], state.steps[ended] = 0.0, -1

    def _store(self, level: np.uint64, score: float, solved: bool = False) -> None:
        """Store the score of a level; a new level takes a free slot or replaces one with a lower score."""
        state = self.state
        stored, free = np.flatnonzero((state.levels == level) & (state.begun >= 0)), np.flatnonzero(state.begun < 0)
        slot = int(stored[0]) if len(stored) else int(free[0]) if len(free) else int(state.scores.argmin())
        plays, solves = 1, int(solved)
        if len(stored):
            plays, solves = plays + int(state.plays[slot]), solves + int(state.solves[slot])
        if self.learnability:
            p = (solves + 1) / (plays + 2)
            score = p * (1 - p)
        if not len(stored):
            if not len(free) and score <= state.scores[slot]:
                return
            state.begun[slot] = state.clock[0]
        state.levels[slot], state.scores[slot] = level, score
        state.plays[slot], state.solves[slot] = plays, solves

    def _choose(self, ended: NDArray[Any], streams: NDArray[Any]) -> None:
        """Choose the next level of each of these environments: a stored one, or the next from its stream."""
        state = self.state
        random = np.random.default_rng((*state.seed.tolist(), int(state.clock[0])))
        state.own[ended] = np.where(state.again[ended], state.own[ended], streams[ended])
        state.again[ended] = (random.random(len(ended)) < self.share) & bool((state.begun >= 0).all())
        state.clock[0] += len(ended)
        streams[ended] = state.own[ended]
        again = ended[state.again[ended]]
        if len(again):
            slots = random.choice(len(state.levels), len(again), p=self.probabilities())
            streams[again] = state.levels[slots]
            state.begun[slots] = state.clock[0]
        state.playing[ended], state.known[ended] = streams[ended], True

    def probabilities(self) -> NDArray[np.float64]:
        """Replay probability P of each level; the store must be full."""
        ranks = np.empty(len(self.state.scores))
        ranks[np.argsort(-self.state.scores, kind="stable")] = np.arange(1, len(ranks) + 1)
        by_score = self.state.scores if self.learnability else ranks ** (-1 / BETA)
        stale = (self.state.clock[0] - self.state.begun).astype(np.float64)
        by_age = stale / stale.sum() if stale.any() else np.full(len(ranks), 1 / len(ranks))
        return (1 - RHO) * by_score / by_score.sum() + RHO * by_age

    def save(self) -> dict[str, NDArray[Any]]:
        return {name: value.copy() for name, value in self.state._asdict().items()}

    def restore(self, saved: dict[str, Any]) -> None:
        for name, value in self.state._asdict().items():
            value[...] = saved[name]
