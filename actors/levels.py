"""Levels on which actors act: curricula, environments in several stages, staggered episodes, and level replay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..agents.values import map_leaves
from ..base.errors import LARGEST, check_range, refuse
from ..base.settings import Settings, setting

GOLDEN = (5**0.5 - 1) / 2  # The fractional parts of its multiples are evenly spread over 0..1 for any count
Shares = tuple[float, ...]  # Share of the environments in each stage; the shares sum to 1
BETA, RHO = 0.1, 0.1  # Temperature of the ranks and weight of staleness in level replay, as in the paper
STATE = (  # Saved arrays of level replay
    *("levels", "scores", "begun", "playing", "known", "own", "again", "values", "errors", "steps"),
    *("plays", "solves", "clock", "seed"),
)

Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class LevelsConfig(Settings):
    """Curriculum, level replay, and staggered episodes."""

    curriculum: dict[str, Any] = field(default_factory=dict[str, Any])
    """Environment parameters of easier stages, KEY=V1,V2: one value per stage; the configured environment is last."""
    curriculum_score: tuple[float, ...] = (0.9,)
    """Mean at which the next stage begins: one value for all stages, or one per stage."""
    curriculum_measure: str = "solved"
    """Metric that is averaged: return, length, or a field of the environment's episodes."""
    curriculum_episodes: int = setting(500, (1, LARGEST))
    """Number of most recent episodes of a stage that the mean includes, at least 1."""
    curriculum_steps: int = setting(0, (0, LARGEST))
    """Steps after which a stage ends whatever its mean is, so that the configured environment is reached; 0: never."""

    curriculum_mixture: float = setting(0.0, (0, 1))
    """Above 0, all stages are trained at once: this share of environments is split evenly among the stages, the rest in
    proportion to p (1 - p) for a stage's solved rate p, so that no stage is abandoned. 0: one stage after another."""

    level_replay: float = setting(0.0, (0, 1))
    """Probability that an episode replays a stored level, preferably one with a high score, 0..1
    (prioritized level replay); 0: all levels are new."""
    level_replay_size: int = setting(500, (1, LARGEST))
    """Levels that each actor stores for replay, at least 1; replay begins when the store is full."""
    level_replay_score: Literal["error", "learnability"] = "error"
    """Score of a level's learning potential: mean absolute value error, or p (1 - p) for its solved rate p."""
    stagger: int = setting(0, (0, LARGEST))
    """Steps over which to stagger environments that begin together (at the start and in every stage), so that they are
    in different phases of their episodes: one early episode of each environment is truncated.
    Use about the length of an episode (in a curriculum, of the longest one); 0 disables staggering."""

    def __post_init__(self) -> None:
        super().__post_init__()
        measure, mixture = self.curriculum_measure, "allowed with curriculum_mixture"
        if self.curriculum_mixture:
            refuse(not self.curriculum, f"curriculum is {self.curriculum}; {mixture}: at least one easier stage")
            refuse(measure != "solved", f"curriculum_measure is {measure}; {mixture}: solved")
            refuse(self.level_replay, f"level_replay is {self.level_replay}; {mixture}: 0")
        counts = {len(_values(value)) for value in self.curriculum.values()}
        allowed = "the same number of values for each parameter, at least one"
        refuse(len(counts) > 1 or 0 in counts, f"curriculum is {self.curriculum}; allowed: {allowed}")
        sizes, size = sorted({1, max(1, len(self.stages) - 1)}), len(self.curriculum_score)
        allowed = f"{' or '.join(map(str, sizes))}, one for all stages except the last, or one for each"
        refuse(size not in sizes, f"curriculum_score has {size} values; allowed: {allowed}")
        if self.curriculum and self.curriculum_measure == "solved":
            for score in self.curriculum_score:
                check_range("curriculum_score (with curriculum_measure 'solved')", score, 0, 1)

    @cached_property
    def stages(self) -> tuple[dict[str, Any], ...]:
        """Environment parameters that each stage changes; none in the last one, the configured environment."""
        values = [_values(value) for value in self.curriculum.values()]
        return (*(dict(zip(self.curriculum, stage, strict=True)) for stage in zip(*values, strict=False)), {})

    @property
    def first_stage(self) -> int | Shares:
        """Index of a run's first stage, or the share of each stage in a mixture."""
        return (1 / len(self.stages),) * len(self.stages) if self.curriculum_mixture else 0

    @property
    def scores(self) -> tuple[float, ...]:
        """Mean at which each stage except the last one ends."""
        easier = len(self.stages) - 1
        return self.curriculum_score * easier if len(self.curriculum_score) == 1 else self.curriculum_score


@dataclass(frozen=True, kw_only=True)
class ActingConfig:
    """Levels on which actors act, and what they record in addition."""

    levels: LevelsConfig = LevelsConfig()
    discount: float = 1.0  # Discount of the returns that values estimate; used in the scores of levels
    reward_clip: float = 0.0  # Bound on the rewards in these scores; 0 for none
    imitate: str = ""  # Player whose actions are recorded in unrolls, module:Class; "" for none
    novelty: bool = False  # Whether unrolls record which cells or observations are new in their episode


def in_words(parameters: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in parameters.items()) or "the target environment"


def _values(value: Any) -> list[Any]:
    if isinstance(value, str):
        truths = {"true": True, "false": False}
        return [truths.get(text.strip().lower(), text.strip()) for text in value.split(",")]
    return list(value) if isinstance(value, list | tuple) else [value]


def widths(first_index: int, num_envs: int, shares: Shares) -> list[int]:
    """Number of environments of each stage in an actor whose first environment has this index in the run; across all
    actors, the counts follow the shares."""
    phases = (np.arange(first_index, first_index + num_envs) + 0.5) * GOLDEN % 1.0
    stages = np.searchsorted(np.cumsum(shares)[:-1], phases, side="right")
    return np.bincount(stages, minlength=len(shares)).tolist()


class MixtureBatch:
    """Batch of the environments of several batches with the same spaces and episode fields, as far as actors use it."""

    replayable = False

    def __init__(self, parts: Sequence[Any]) -> None:
        bounds = np.cumsum([0, *(part.num_envs for part in parts)]).tolist()
        self.num_envs, self.batches = bounds[-1], parts
        self.parts = [(part, slice(low, high)) for part, (low, high) in zip(parts, pairwise(bounds), strict=True)]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that all stages have in common, such as a space."""
        return getattr(self.__dict__["parts"][-1][0], name)

    @property
    def action_mask(self) -> NDArray[Any] | None:
        masks = [part.action_mask for part, _ in self.parts]
        return None if masks[0] is None else np.concatenate(masks)

    def new_observation(self) -> Any:
        return map_leaves(lambda *x: np.concatenate(x), *(part.new_observation() for part, _ in self.parts))

    def reset_into(self, observation: Any, seed: int | None = None) -> None:
        for part, span in self.parts:
            part.reset_into(_some(observation, span), seed)

    def step_into(self, actions: Any, observation: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        for part, span in self.parts:
            part.step_into(actions[span], _some(observation, span), reward[span], terminated[span], truncated[span])

    def cut(self, where: NDArray[np.bool_]) -> None:
        for part, span in self.parts:
            part.cut(where[span])

    def episode_facts(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        within = [indices[(indices >= span.start) & (indices < span.stop)] - span.start for _, span in self.parts]
        return np.concatenate([part.episode_facts(x) for (part, _), x in zip(self.parts, within, strict=True)])

    def privileged(self) -> NDArray[Any]:
        return np.concatenate([part.privileged() for part, _ in self.parts])

    def mark_seen(self, maps: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([part.mark_seen(maps[span]) for part, span in self.parts])

    def save(self) -> dict[str, Any]:
        return {"parts": [part.save() for part, _ in self.parts]}

    def restore(self, saved: dict[str, Any]) -> None:
        for (part, _), state in zip(self.parts, saved["parts"], strict=True):
            part.restore(state)

    def close(self) -> None:
        for part, _ in self.parts:
            part.close()


def _some(values: Any, span: slice) -> Any:
    return map_leaves(lambda x: x[span], values)


class Stagger:
    """Selection of one episode per environment to truncate: the one in progress after a number of steps in 1..`steps`.

    All environments begin together, at the start of a run and of every stage. If episodes have a fixed length, or while
    none is solved, they would also end together: each batch would contain only one phase of the episode.
    """

    def __init__(self, steps: int, first_index: int, num_envs: int) -> None:
        phases = (np.arange(first_index, first_index + num_envs) * GOLDEN) % 1.0
        # Steps until each environment's episode is cut; 0 if no cut remains
        self.left: NDArray[np.int64] = (1 + phases * steps).astype(np.int64) * (steps > 0)

    def due(self, over: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """Return the environments to cut after a step, bool [N]; None if there are none. An environment is never cut if
        the step at which its cut is due ends its episode (`over`, bool [N])."""
        if not self.left.any():
            return None
        due = (self.left == 1) & ~over
        self.left = np.maximum(self.left - 1, 0)
        return due if due.any() else None


class Replay:
    """Prioritized level replay (Jiang, Grefenstette & Rocktaschel 2021): episodes in levels with learning potential.

    A level is the state of its environment's random stream at the beginning of the episode. Its score is the mean
    absolute one-step error of the behavior policy's values in the level's latest episode (one of the scores in the
    paper's appendix),

        S = mean_t |r_{t+1} + gamma V_{t+1} - V_t|        with V_{t+1} = 0 where t + 1 is terminal

    and a stored level i is replayed with probability (equations 1 to 3 of the paper)

        P(i) = (1 - rho) P_S(i) + rho P_C(i),    P_S(i) ~ (1 / rank(S_i))^(1 / beta),    P_C(i) ~ c - C_i

    where c is the number of episodes begun and C_i its value when level i last began.

    The other score is learnability (Rutherford et al. 2024, "No regrets: investigating and improving regret
    approximations for curriculum discovery", equation 1), which is 0 for levels that are always or never solved,

        S = p (1 - p),    p = (s + 1) / (n + 2),    P_S(i) ~ S_i

    for a level solved s times in n episodes; p is the posterior mean under a uniform prior.

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
