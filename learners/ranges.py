"""Ranges of configuration fields: the check, and the message of a value outside."""

from typing import Any

Range = tuple[str, float | None, float | None]
"""A field's name, its lowest and its highest value; None where there is no bound."""


def check_ranges(config: Any, *ranges: Range, prefix: str = "") -> None:
    """Raise ValueError naming the first field of a dataclass whose value is not in its range (nan never is)."""
    for name, low, high in ranges:
        value = getattr(config, name)
        if not (low is None or value >= low) or not (high is None or value <= high):
            span = f"at least {low}" if high is None else f"{low}..{high}"
            raise ValueError(f"{prefix}{name} is {value}; allowed: {span}")


def check_positive(config: Any, *names: str, prefix: str = "") -> None:
    """Raise ValueError naming the first of these fields that is not above 0."""
    for name in names:
        if not getattr(config, name) > 0:
            raise ValueError(f"{prefix}{name} is {getattr(config, name)}; allowed: above 0")
