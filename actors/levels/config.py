"""Configuration of the levels on which agents act."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ...base.errors import LARGEST, check_range, refuse
from ...base.settings import Settings, setting


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
    def first_stage(self) -> int | tuple[float, ...]:
        """Index of a run's first stage, or the share of each stage in a mixture."""
        return (1 / len(self.stages),) * len(self.stages) if self.curriculum_mixture else 0

    @property
    def scores(self) -> tuple[float, ...]:
        """Mean at which each stage except the last one ends."""
        easier = len(self.stages) - 1
        return self.curriculum_score * easier if len(self.curriculum_score) == 1 else self.curriculum_score


def in_words(parameters: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in parameters.items()) or "the target environment"


def _values(value: Any) -> list[Any]:
    if isinstance(value, str):
        truths = {"true": True, "false": False}
        return [truths.get(text.strip().lower(), text.strip()) for text in value.split(",")]
    return list(value) if isinstance(value, list | tuple) else [value]
