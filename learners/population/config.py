"""Population-based training: scheme, evaluation times, and settings that differ between members.

    learner.lr=loguniform(1e-5,1e-3)        log(value) is uniform
    learner.entropy_cost=uniform(0,0.02)
    learner.bptt_length=choice(3,20,100)

Any numeric setting of LearnerConfig or of a registered algorithm can be explored; integers stay integers.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, TypeAlias, get_type_hints

import numpy as np

from ...base.errors import EngramError, above, advice, refuse, user_errors
from ...base.settings import Settings, setting
from ...base.units import number
from ..algorithms import algorithm_class, algorithm_names
from ..config import LearnerConfig

Scheme: TypeAlias = Literal["lp-rnn", "truncation"]
Together: TypeAlias = Literal["auto", "on", "off"]

PREFIX = "learner."
KINDS = ("loguniform", "uniform", "choice")
_FORM = re.compile(r"\s*([\w.]+)\s*=\s*(\w+)\s*\(([^()]*)\)\s*")

Values = dict[str, float]  # Settings by dotted name, e.g. {"learner.lr": 3e-4}; integers are int.


class Explored(NamedTuple):
    setting: str  # Dotted name
    kind: str  # One of KINDS
    numbers: tuple[float, ...]  # Lowest and highest value; for a choice, all values in increasing order.
    whole: bool  # Whether the setting is an integer

    def sample(self, rng: np.random.Generator) -> float:
        if self.kind == "choice":
            return self.numbers[int(rng.integers(len(self.numbers)))]
        low, high = self.numbers
        if self.kind == "uniform":
            return self._allowed(float(rng.uniform(low, high)))
        return self._allowed(math.exp(float(rng.uniform(math.log(low), math.log(high)))))

    def perturb(self, value: float, factors: tuple[float, float], rng: np.random.Generator) -> float:
        """Multiply `value` by one of `factors`, within the range; for a choice, take the next lower or higher value."""
        up = bool(rng.integers(2))
        if self.kind == "choice":
            index = self.numbers.index(value) + (1 if up else -1)
            return self.numbers[min(max(index, 0), len(self.numbers) - 1)]
        return self._allowed(value * factors[up])

    def _allowed(self, value: float) -> float:
        low, high = self.numbers
        value = min(max(value, low), high)
        return round(value) if self.whole else value


def applied(config: LearnerConfig, values: Values) -> LearnerConfig:
    """Return a learner's configuration with these values set. Raises ValueError for an invalid value."""
    settings = {name.removeprefix(PREFIX): value for name, value in values.items()}
    shared = {name: value for name, value in settings.items() if name in get_type_hints(LearnerConfig)}
    specific = {name: value for name, value in settings.items() if name not in shared}
    return replace(config, **shared, algorithm_args=config.algorithm_args | specific)  # type: ignore


def parse(texts: Sequence[str], flag: str = "explore") -> tuple[Explored, ...]:
    """Parse the search space in a flag's arguments. Raises ValueError naming the argument and the allowed values."""
    explored = tuple(_parse(text, flag) for text in texts)
    names = [x.setting for x in explored]
    for name in names:
        refuse(names.count(name) > 1, f"{flag} names {name} twice; allowed: each setting once")
    return explored


def _parse(argument: str, flag: str) -> Explored:
    form = "SETTING=loguniform(LOW,HIGH), uniform(LOW,HIGH) or choice(A,B,...)"
    match = _FORM.fullmatch(argument)
    if match is None:
        raise EngramError(f"{flag} {argument!r} is not of the form {form}")
    setting, kind, inside = match.groups()
    name, numeric = f"{flag} {setting}", _numeric_settings()
    if setting not in numeric:
        raise EngramError(f"{name}: not a numeric setting; {advice(PREFIX + setting.removeprefix(PREFIX), numeric)}")
    hint, algorithm = numeric[setting]
    refuse(kind not in KINDS, f"{name}: unknown distribution {kind!r}; allowed: {', '.join(KINDS)}")
    with user_errors(name):
        values = [number(text.strip()) for text in inside.split(",") if text.strip()]
    for value in values if hint is int else ():
        refuse(value != int(value), f"{name}: {value:g} is not a whole number; the setting is an integer")
    values, prefix = [hint(value) for value in values], f"{name}: {kind}({inside})"
    if kind == "choice":
        values = sorted(set(values))
        refuse(len(values) < 2, f"{prefix} has fewer than two different values; allowed: two or more")
    else:
        refuse(len(values) != 2, f"{prefix} has {len(values)} values; allowed: {kind}(LOW,HIGH)")
        refuse(not values[0] < values[1], f"{prefix} is empty; allowed: LOW below HIGH")
        refuse(kind == "loguniform" and values[0] <= 0, f"{prefix} begins at {values[0]:g}; allowed: above 0")
    for value in values:
        with user_errors(f"{name}={kind}({inside})"):
            applied(LearnerConfig(algorithm=algorithm), {setting: value})
    return Explored(setting, kind, tuple(values), hint is int)


def _numeric_settings() -> dict[str, tuple[type, str]]:
    """Type, int or float, of every numeric setting by dotted name, and an algorithm that has it."""
    owners = [(algorithm_class(name).Settings, name) for name in algorithm_names()]
    owners.append((LearnerConfig, LearnerConfig().algorithm))
    return {
        PREFIX + name: (hint, algorithm)
        for owner, algorithm in owners
        for name, hint in get_type_hints(owner).items()
        if hint in (int, float)
    }


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
        return parse(self.explore)
