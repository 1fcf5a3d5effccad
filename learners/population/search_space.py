"""Settings that differ between members of a population: flags, initial values and mutations.

    learner.lr=loguniform(1e-5,1e-3)        log(value) is uniform
    learner.entropy_cost=uniform(0,0.02)
    learner.bptt_length=choice(3,20,100)

Any numeric setting of LearnerConfig, or of a registered algorithm (learner.gae_lambda), can be explored; integers
stay integers.
"""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from ...base.errors import refuse, user_errors
from ...base.units import number
from ..algorithms.registry import algorithm_class, algorithm_names
from ..config import LearnerConfig

PREFIX = "learner."
KINDS = ("loguniform", "uniform", "choice")
_FORM = re.compile(r"\s*([\w.]+)\s*=\s*(\w+)\s*\(([^()]*)\)\s*")

Values = dict[str, float]  # Settings by dotted name, e.g. {"learner.lr": 3e-4}; integers are int.


class Explored(NamedTuple):
    """Setting and the distribution of its values."""

    setting: str  # Dotted name
    kind: str  # One of KINDS
    numbers: tuple[float, ...]  # Lowest and highest value; for a choice, all values in increasing order.
    whole: bool  # Whether the setting is an integer

    def sample(self, rng: np.random.Generator) -> float:
        """Sample a value."""
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


def first_values(explored: Sequence[Explored], members: int, rng: np.random.Generator) -> list[Values]:
    """Sample the initial values of every member."""
    return [{x.setting: x.sample(rng) for x in explored} for _ in range(members)]


def mutated(
    explored: Sequence[Explored],
    values: Values,
    factors: tuple[float, float],
    resample: float,
    rng: np.random.Generator,
) -> Values:
    """Resample every setting with probability `resample`, else perturb it (Jaderberg et al. 2017, section 4.1)."""
    return {
        x.setting: x.sample(rng) if rng.random() < resample else x.perturb(values[x.setting], factors, rng)
        for x in explored
    }


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
        if names.count(name) > 1:
            raise ValueError(f"{flag} names {name} twice; allowed: each setting once")
    return explored


def _parse(argument: str, flag: str) -> Explored:
    match = _FORM.fullmatch(argument)
    if match is None:
        raise ValueError(
            f"{flag} {argument!r} is not of the form SETTING=loguniform(LOW,HIGH), uniform(LOW,HIGH) or choice(A,B,...)"
        )
    setting, kind, inside = match.groups()
    whole = _numeric_type(setting, flag) is int
    if kind not in KINDS:
        raise ValueError(f"{flag} {setting}: unknown distribution {kind!r}; allowed: {', '.join(KINDS)}")
    values = [_number(f"{flag} {setting}", text, whole) for text in inside.split(",") if text.strip()]
    prefix = f"{flag} {setting}: {kind}({inside})"
    if kind == "choice":
        values = sorted(set(values))
        refuse(len(values) < 2, f"{prefix} has fewer than two different values; allowed: two or more")
    else:
        refuse(len(values) != 2, f"{prefix} has {len(values)} values; allowed: {kind}(LOW,HIGH)")
        refuse(not values[0] < values[1], f"{prefix} is empty; allowed: LOW below HIGH")
        refuse(kind == "loguniform" and values[0] <= 0, f"{prefix} begins at {values[0]:g}; allowed: above 0")
    for value in values:
        with user_errors(f"{flag} {setting}={kind}({inside})"):
            applied(LearnerConfig(algorithm=_settings()[setting][1]), {setting: value})
    return Explored(setting, kind, tuple(values), whole)


def _numeric_type(setting: str, flag: str) -> type:
    """Type of a setting, int or float. Raises ValueError for an unknown or non-numeric setting."""
    settings = _settings()
    numeric = sorted(name for name, (hint, _) in settings.items() if hint in (int, float))
    if setting in numeric:
        return settings[setting][0]
    if setting in settings:
        raise ValueError(f"{flag} {setting}: not a number; numeric settings: {', '.join(numeric)}")
    near = difflib.get_close_matches(setting if setting.startswith(PREFIX) else PREFIX + setting, numeric, n=3)
    advice = f"did you mean: {', '.join(near)}?" if near else f"numeric settings: {', '.join(numeric)}"
    raise ValueError(f"{flag} {setting}: no such setting; {advice}")


def _settings() -> dict[str, tuple[Any, str]]:
    """Return all settings by dotted name, with their type and an algorithm that has them."""
    settings: dict[str, tuple[Any, str]] = {}
    for algorithm in algorithm_names():
        hints = get_type_hints(algorithm_class(algorithm).Settings)
        settings |= {PREFIX + name: (hint, algorithm) for name, hint in hints.items()}
    plain = LearnerConfig().algorithm
    return settings | {PREFIX + name: (hint, plain) for name, hint in get_type_hints(LearnerConfig).items()}


def _number(name: str, text: str, whole: bool) -> float:
    with user_errors(name):
        value = number(text.strip())
        refuse(whole and value != int(value), f"{text.strip()} is not a whole number; the setting is an integer")
    return int(value) if whole else value
