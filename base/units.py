"""Units in values that users write: durations such as `90s`, `10m` and `2h`, counts such as `20k`, `1.5M` and `1B`."""

import contextlib
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Seconds = float
    Minutes = float
else:

    class Seconds(float):
        """Type of a field that is a duration; a number without a unit counts seconds."""

    class Minutes(float):
        """Type of a field that is a duration; a number without a unit counts minutes."""


DURATIONS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds of each unit of time."""
COUNTS = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}
_UNIT = {Seconds: "s", Minutes: "m"}
_QUANTITY = re.compile(r"\s*([-+]?[\d._]+(?:[eE][-+]?\d+)?)\s*([a-zA-Z]*)\s*")


def is_duration(kind: Any) -> bool:
    """Whether a field's type is Seconds or Minutes."""
    return kind in _UNIT


def count(text: str) -> int:
    """A whole number, also written like 20k, 1.5M, 2e6 or 1_000_000. Raises ValueError."""
    with contextlib.suppress(ValueError):
        return int(text)
    found = _quantity(text, COUNTS)
    if found is not None and found == int(found) and abs(found) < 2**53:
        return int(found)
    raise ValueError(f"{text!r} is not a whole number; allowed also: 20k, 1.5M, 2B, 1e6")


def number(text: str) -> float:
    """A finite number. Raises ValueError."""
    found = _quantity(text, {})
    if found is None:
        raise ValueError(f"{text!r} is not a number")
    return found


def duration(text: str, kind: Any) -> float:
    """A duration in the unit of its field's type (Seconds or Minutes), with or without a unit. Raises ValueError."""
    own = _UNIT[kind]
    found = _quantity(text, {"": DURATIONS[own], **DURATIONS})
    if found is None:
        raise ValueError(f"{text!r} is not a duration; allowed: 90s, 10m, 2h, 1d, or a number of {_plain(own)}")
    return found / DURATIONS[own]


def in_words(value: Any, kind: Any = None) -> str:
    """A value as a user may write it: 60s and 10m for durations of that type, 20k and 1.5M for round whole numbers."""
    if kind in _UNIT and isinstance(value, int | float):
        return f"{value:.15g}{_UNIT[kind]}" if value else "0"
    if isinstance(value, int) and not isinstance(value, bool):
        for unit in ("B", "M", "k"):
            if abs(value) >= COUNTS[unit] and value * 10 % COUNTS[unit] == 0:
                return f"{value / COUNTS[unit]:g}{unit}"
    return str(value)


def _quantity(text: str, units: dict[str, Any]) -> float | None:
    """The number before the unit times the unit; None if the text is no such thing or not finite."""
    match = _QUANTITY.fullmatch(text)
    try:
        if match and match[2] in units:
            text, factor = match[1], units[match[2]]
        else:
            factor = units.get("", 1)
        found = float(text)
    except ValueError:
        return None
    # 1.1 * 10**6 is not a whole number in floating point; as a decimal fraction it is.
    found = round(found * factor, 6) if factor != 1 else found
    return found if math.isfinite(found) else None


def _plain(unit: str) -> str:
    return "seconds" if unit == "s" else "minutes"
