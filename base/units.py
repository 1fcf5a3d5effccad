"""Units in user input: durations such as `90s`, `10m` and `2h`, counts such as `20k`, `1.5M` and `1B`."""

import contextlib
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Seconds = float
    Minutes = float
else:

    class Seconds(float):
        """Type of fields for durations; a value without a unit is in seconds."""

    class Minutes(float):
        """Type of fields for durations; a value without a unit is in minutes."""


DURATIONS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}  # Seconds of each unit of time
COUNTS = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}
_UNIT, _UNIT_NAMES = {Seconds: "s", Minutes: "m"}, {"s": "seconds", "m": "minutes"}
_QUANTITY = re.compile(r"\s*([-+]?[\d._]+(?:[eE][-+]?\d+)?)\s*([a-zA-Z]*)\s*")


def count(text: str) -> int:
    """Parse an integer, which may be written as 20k, 1.5M, 2e6 or 1_000_000. Raises ValueError."""
    with contextlib.suppress(ValueError):
        return int(text)
    value = _quantity(text, COUNTS)
    if value is not None and value == int(value) and abs(value) < 2**53:
        return int(value)
    raise ValueError(f"{text!r} is not a whole number; also allowed: 20k, 1.5M, 2B, 1e6")


def number(text: str) -> float:
    """Parse a finite number. Raises ValueError."""
    value = _quantity(text, {})
    if value is None:
        raise ValueError(f"{text!r} is not a number")
    return value


def duration(text: str, kind: Any) -> float:
    """Parse a duration, with or without a unit; return it in its type's unit (Seconds, Minutes). Raises ValueError."""
    unit = _UNIT[kind]
    value = _quantity(text, {"": DURATIONS[unit], **DURATIONS})
    if value is None:
        raise ValueError(f"{text!r} is not a duration; allowed: 90s, 10m, 2h, 1d, or a number of {_UNIT_NAMES[unit]}")
    return value / DURATIONS[unit]


def in_words(value: Any, kind: Any = None) -> str:
    """Format a value as a user may write it: 60s and 10m for durations, 20k and 1.5M for round integers."""
    if kind in _UNIT and isinstance(value, int | float):
        return f"{value:.15g}{_UNIT[kind]}" if value else "0"
    if isinstance(value, int) and not isinstance(value, bool):
        for unit in ("B", "M", "k"):
            if abs(value) >= COUNTS[unit] and value * 10 % COUNTS[unit] == 0:
                return f"{value / COUNTS[unit]:.15g}{unit}"
    return str(value)


def _quantity(text: str, units: dict[str, Any]) -> float | None:
    """Parse a value and multiply it by its unit; None if the text cannot be parsed or the result is not finite."""
    match = _QUANTITY.fullmatch(text)
    units = {"": 1} | units
    with contextlib.suppress(ValueError, OverflowError):
        if match and match[2] in units:
            # 1.1 * 10**6 is not an integer in floating point, so the product is rounded.
            factor, value = units[match[2]], float(match[1])
            value = round(value * factor, 6) if factor != 1 else value
            return value if math.isfinite(value) else None
    return None
