"""Population-based training: scheme, evaluation times, and settings that differ between members."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, TypeAlias

from ...base.errors import above
from ...base.settings import Settings, setting
from .search_space import Explored, parse

Scheme: TypeAlias = Literal["lp-rnn", "truncation"]
Together: TypeAlias = Literal["auto", "on", "off"]


@dataclass(frozen=True, kw_only=True)
class PopulationConfig(Settings):
    """Configuration of population-based training."""

    prefix: ClassVar[str] = "pbt."

    scheme: Scheme = "lp-rnn"
    """lp-rnn: a member copies the weights of a random other member if a t-test finds it better, and keeps its settings.
    truncation: the worst members copy the weights and settings of the best members, and mutate the settings."""
    explore: tuple[str, ...] = ()
    """Settings that differ between members, SETTING=loguniform(LOW,HIGH), uniform(LOW,HIGH) or choice(A,B,...)."""
    warmup: int = setting(30_000, (0, None))
    """Episodes that a member finishes before its first evaluation, at least 0."""
    interval: int = setting(30_000, (1, None))
    """Episodes of a member between two evaluations of it, at least 1."""
    window: int = setting(3_000, (2, None))
    """Number of last episode returns to compare, at least 2; members with fewer are not compared."""
    p_value: float = setting(0.05, (0, 1))
    """lp-rnn: largest p-value of Welch's two-sided t-test at which a higher mean counts as better, 0..1."""
    quantile: float = setting(0.25, above(0, 0.5))
    """truncation: share of the population that counts as worst, and as best, above 0, at most 0.5."""
    factors: tuple[float, float] = (0.8, 1.2)
    """truncation: each setting is multiplied by one of these and clipped to its explored range."""
    resample: float = setting(0.25, (0, 1))
    """truncation: probability that a setting is resampled instead, 0..1."""
    together: Together = "auto"
    """Whether members learn in one batched call, and act in one if actors are in the learner's process; results
    differ from separate calls by rounding. auto: on a GPU, except that with --cuda-graph members learn in turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.factors) != 2 or not 0 < self.factors[0] < self.factors[1]:
            raise ValueError(f"pbt.factors is {self.factors}; allowed: two numbers above 0, the smaller one first")
        _ = self.explored

    @property
    def first_due(self) -> int:
        """Number of episodes that a member finishes before its first comparison."""
        return max(self.warmup, self.window)

    @cached_property
    def explored(self) -> tuple[Explored, ...]:
        """Parsed `explore`. Raises ValueError for invalid text."""
        return parse(self.explore)
