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

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .levels import LevelsConfig

BETA, RHO = 0.1, 0.1  # Temperature of the ranks and weight of staleness, as in the paper
STATE = (  # Saved arrays
    *("levels", "scores", "begun", "playing", "known", "own", "again", "values", "errors", "steps"),
    *("plays", "solves", "clock", "seed"),
)

Flags = NDArray[np.bool_]


class Replay:
    """Level replay for one actor's environments.

    Args:
        discount: gamma.
        seed: seed of the choices.
        reward_clip: bound on the rewards in the returns that values estimate; 0 for none.
    """

    def __init__(
        self, levels: LevelsConfig, discount: float, seed: tuple[int, ...], num_envs: int, reward_clip: float = 0.0
    ) -> None:
        self.learnability = levels.level_replay_score == "learnability"
        self.share, self.discount, self.most = levels.level_replay, discount, reward_clip or np.inf
        size = levels.level_replay_size
        self.levels = np.zeros(size, np.uint64)  # [K]: stored levels
        self.scores = np.zeros(size, np.float64)  # [K]: S
        self.begun = np.full(size, -1, np.int64)  # [K]: C; -1 in a free slot
        self.plays, self.solves = np.zeros(size, np.int64), np.zeros(size, np.int64)  # [K]: n and s
        self.playing = np.zeros(num_envs, np.uint64)  # [N]: the level of each environment
        self.known = np.zeros(num_envs, np.bool_)  # [N]: whether it is known; an environment's first level is not
        self.own = np.zeros(num_envs, np.uint64)  # [N]: state of the environment's own stream after a replayed level
        self.again = np.zeros(num_envs, np.bool_)  # [N]: whether the level is a replay
        self.values = np.zeros(num_envs, np.float64)  # [N]: V at the previous step
        self.errors = np.zeros(num_envs, np.float64)  # [N]: sum of absolute value errors in this episode
        self.steps = np.full(num_envs, -1, np.int64)  # [N]: number of these errors; -1 before the episode's first step
        self.clock, self.seed = np.zeros(1, np.int64), np.array(seed, np.uint64)  # c, and the seed of the choices

    def see(self, env: Any, values: NDArray[np.floating[Any]], streams: NDArray[Any], solved: Flags) -> None:
        """Process a step [N] of the environments and its values, after the agent's step and before the environments'.

        Where an episode has ended (`solved` or not), set `streams` to the level of the next one."""
        within = self.steps >= 0
        target = np.clip(env.reward, -self.most, self.most) + self.discount * np.where(env.terminated, 0.0, values)
        self.errors[within] += np.abs(target - self.values)[within]
        self.steps += 1
        self.values[:] = values
        ended = np.flatnonzero(env.terminated | env.truncated)
        if len(ended):
            for i in ended:
                if self.known[i] and self.steps[i]:
                    self._store(self.playing[i], self.errors[i] / self.steps[i], bool(solved[i]))
            self._choose(ended, streams)
            self.errors[ended], self.steps[ended] = 0.0, -1

    def _store(self, level: np.uint64, score: float, solved: bool = False) -> None:
        """Store the score of a level; a new level takes a free slot or replaces one with a lower score."""
        stored, free = np.flatnonzero((self.levels == level) & (self.begun >= 0)), np.flatnonzero(self.begun < 0)
        slot = int(stored[0]) if len(stored) else int(free[0]) if len(free) else int(self.scores.argmin())
        plays, solves = 1, int(solved)
        if len(stored):
            plays, solves = plays + int(self.plays[slot]), solves + int(self.solves[slot])
        if self.learnability:
            p = (solves + 1) / (plays + 2)
            score = p * (1 - p)
        if not len(stored):
            if not len(free) and score <= self.scores[slot]:
                return
            self.begun[slot] = self.clock[0]
        self.levels[slot], self.scores[slot] = level, score
        self.plays[slot], self.solves[slot] = plays, solves

    def _choose(self, ended: NDArray[Any], streams: NDArray[Any]) -> None:
        """Choose the next level of each of these environments: a stored one, or the next from its stream."""
        random = np.random.default_rng((*self.seed.tolist(), int(self.clock[0])))
        self.own[ended] = np.where(self.again[ended], self.own[ended], streams[ended])
        self.again[ended] = (random.random(len(ended)) < self.share) & bool((self.begun >= 0).all())
        self.clock[0] += len(ended)
        streams[ended] = self.own[ended]
        again = ended[self.again[ended]]
        if len(again):
            slots = random.choice(len(self.levels), len(again), p=self.probabilities())
            streams[again] = self.levels[slots]
            self.begun[slots] = self.clock[0]
        self.playing[ended], self.known[ended] = streams[ended], True

    def probabilities(self) -> NDArray[np.float64]:
        """Replay probability P of each level; the store must be full."""
        ranks = np.empty(len(self.scores))
        ranks[np.argsort(-self.scores, kind="stable")] = np.arange(1, len(ranks) + 1)
        by_score = self.scores if self.learnability else ranks ** (-1 / BETA)
        stale = (self.clock[0] - self.begun).astype(np.float64)
        by_age = stale / stale.sum() if stale.any() else np.full(len(ranks), 1 / len(ranks))
        return (1 - RHO) * by_score / by_score.sum() + RHO * by_age

    def save(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name).copy() for name in STATE}

    def restore(self, saved: dict[str, Any]) -> None:
        for name in STATE:
            getattr(self, name)[...] = saved[name]
