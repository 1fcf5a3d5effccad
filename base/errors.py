"""The exception for users' mistakes, checks that raise it with the name, the value and the allowed values, and readable
quantities. A command prints the message and exits with the code of the exception."""

import difflib
import math
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

MANY = 12  # Longest list of names that a message contains in full
LARGEST = 2**31 - 1  # Largest integer setting without another bound: compiled code uses 64-bit integers
MISTAKE, NOT_AVAILABLE = 2, 3  # Exit codes: for a user's mistake, and for a service that may be available later


class EngramError(ValueError):
    """Mistake that the user can correct. The message is one line with the name, its value, the allowed values, and the
    nearest name; a command ends with the exit code."""

    def __init__(self, message: str, exit_code: int = MISTAKE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def refuse(condition: object, message: str) -> None:
    if condition:
        raise EngramError(message)


@contextmanager
def user_errors(what: str = "") -> Generator[None]:
    """Convert a ValueError or TypeError from the body, which reads user input, to EngramError: `what: message`."""
    try:
        yield
    except (ValueError, TypeError) as problem:
        if isinstance(problem, EngramError) and not what:
            raise
        code = problem.exit_code if isinstance(problem, EngramError) else MISTAKE
        raise EngramError(f"{what}: {problem}" if what else str(problem), code) from problem


@contextmanager
def library_errors(what: str, *kinds: type[Exception]) -> Generator[None]:
    """Convert exceptions of these types from the body, which calls a library, to EngramError: `what: message`."""
    try:
        yield
    except EngramError:
        raise
    except kinds as problem:
        raise EngramError(f"{what}: {problem}") from problem


@contextmanager
def file_errors(what: str) -> Generator[None]:
    """Convert an OSError from the body to EngramError: `what: the operating system's reason`."""
    try:
        yield
    except OSError as problem:
        raise EngramError(f"{what}: {problem.strerror or problem}") from problem


class Span(NamedTuple):
    """Range of allowed values; None means no bound. nan and infinite values are never allowed."""

    low: float | None
    high: float | None = None
    above: bool = False  # Whether the lower bound itself is excluded
    below: bool = False  # Whether the upper bound itself is excluded

    def holds(self, value: float) -> bool:
        low = self.low is None or (value > self.low if self.above else value >= self.low)
        high = self.high is None or (value < self.high if self.below else value <= self.high)
        return bool(low and high and abs(value) < math.inf)

    def __str__(self) -> str:
        if self.low is None:
            return "a finite number" if self.high is None else f"at most {self.high}"
        if self.below:
            return f"at least {self.low}, below {self.high}"
        if self.above:
            return f"above {self.low}" + ("" if self.high is None else f", at most {self.high}")
        return f"at least {self.low}" if self.high is None else f"{self.low}..{self.high}"


Bounds: TypeAlias = Span | tuple[float | None, float | None]  # A Span, or (low, high) including both bounds


def above(low: float, high: float | None = None) -> Span:
    return Span(low, high, above=True)


def below(high: float) -> Span:
    """Values from 0 (included) to `high` (excluded)."""
    return Span(0, high, below=True)


SEEDS = Span(0, 2**64 - 1)  # Allowed seeds of a run; torch accepts them too


# -- names ------------------------------------------------------------------------------------------------------------


def nearest(name: object, allowed: Iterable[str], count: int = 3) -> str:
    """List the allowed names most similar to `name`, separated by commas; if none is similar, the first MANY names."""
    names = list(allowed)
    near = difflib.get_close_matches(str(name), names, n=count) or names[:MANY]
    others = f" and {len(names) - MANY} others" if near == names[:MANY] and len(names) > MANY else ""
    return (", ".join(near) or "(none)") + others


def advice(name: object, allowed: Iterable[str], count: int = 3) -> str:
    """End of a message about an unknown name: the similar names, or else the available ones."""
    names = list(allowed)
    if near := difflib.get_close_matches(str(name), names, n=count):
        return f"did you mean: {', '.join(near)}?"
    return f"available: {nearest(name, names)}" if names else "none available"


def check_name(kind: str, name: object, allowed: Iterable[str]) -> None:
    """Raise EngramError with the nearest names unless `name` is one of `allowed`."""
    names = list(allowed)
    if name not in names:
        raise EngramError(f"unknown {kind} {name!r}; {advice(name, names)}")


def check_keys(owner: str, kind: str, keys: Iterable[object], allowed: Iterable[str]) -> None:
    """Raise EngramError with the nearest names for the first of `keys` that is not one of `allowed`."""
    names = list(allowed)
    for key in keys:
        if key not in names:
            raise EngramError(f"{owner} has no {kind} {key!r}; {advice(key, names)}")


def check_new_file(name: str, path: str, ending: str = "") -> None:
    """Raise EngramError with `name` if `path` is a directory, has another ending, or is in a missing directory."""
    if path:
        file, subject = Path(path), f"{name} is {path!r}"
        refuse(file.is_dir(), f"{subject}, which is a directory; expected: a file")
        refuse(not path.lower().endswith(ending), f"{subject}; allowed: a name that ends in {ending}, the file format")
        refuse(not file.parent.is_dir(), f"{subject}; there is no directory {str(file.parent)!r}")


def check_choice(name: str, value: object, allowed: Sequence[Any]) -> None:
    """Raise EngramError with the name, the value and the choices unless `value` is one of `allowed`."""
    valid = any(value == choice and isinstance(value, type(choice)) for choice in allowed)
    refuse(not valid, f"{name} is {value!r}; allowed: {', '.join(map(repr, allowed))}")


# -- values ----------------------------------------------------------------------------------------------------------


def check_range(name: str, value: object, low: float | None, high: float | None = None) -> None:
    """Raise EngramError with the name, the value and the range unless `value` is finite and inside low..high."""
    check_span(name, value, Span(low, high))


def check_span(name: str, value: object, span: Span, choices: Sequence[str] = ()) -> None:
    """Raise EngramError like `check_range` unless `value` is inside `span` or one of the texts in `choices`."""
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    allowed = span.holds(value) if is_number else value in choices  # pyright: ignore[reportArgumentType]
    refuse(not allowed, f"{name} is {value!r}; allowed: {', '.join([*choices, str(span)])}")


def check_integer(name: str, value: object, low: int | None, high: int | None = None) -> None:
    """Raise EngramError unless `value` is an integer in low..high; LARGEST is the limit if `high` is None."""
    check_whole(name, value, low, high)
    check_whole(name, value, low, LARGEST if high is None else high)


def check_whole(name: str, value: object, low: int | None, high: int | None = None) -> None:
    """Raise EngramError unless `value` is an integer in low..high, with no limit if `high` is None, as for seeds."""
    refuse(not _is_integer(value), f"{name} is {value!r}; expected an integer")
    check_range(name, value, low, high)


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_flag(name: str, value: object) -> None:
    refuse(not isinstance(value, bool | np.bool_), f"{name} is {value!r}; allowed: True, False")


def low_high(name: str, value: Any, low: int | None, high: int | None) -> tuple[int, int]:
    """Return the range of a parameter given as one value or as (smallest, largest), both inside low..high."""
    ends = tuple(value) if isinstance(value, Sequence) else (value, value)
    ordered = len(ends) == 2 and all(map(_is_integer, ends)) and ends[0] <= ends[1]
    refuse(not ordered, f"{name} is {value!r}; expected an integer, or two: smallest, largest")
    for end in ends:
        check_integer(name, end, low, high)
    return int(ends[0]), int(ends[1])


def check_numbers(name: str, values: Any, length: int, n: int) -> NDArray[Any]:
    """Return `values` as an integer array [length], all in 0..n-1. Raises EngramError with `name` otherwise."""
    array = np.asarray(values)
    if array.shape != (length,) or not np.issubdtype(array.dtype, np.integer):
        raise EngramError(f"{name} is {values!r}; expected {length} integers")
    refuse(((array < 0) | (array >= n)).any(), f"{name} is {values!r}; allowed: integers in 0..{n - 1}")
    return array


# -- exceptions in user-defined code -----------------------------------------------------------------------------------


def calling(what: str, call: Callable[[], T], outside: Sequence[Path], passing: tuple[type[Exception], ...] = ()) -> T:
    """Call user-defined code; an exception inside it becomes an EngramError with the frames of the user's code: those
    in folders of `outside` are left out. Exceptions of the types in `passing` are raised unchanged."""
    try:
        return call()
    except passing:
        raise
    except (Exception, SystemExit) as problem:
        hidden = ("<frozen", __file__)
        user_frames = [
            frame
            for frame in traceback.extract_tb(problem.__traceback__)
            if not frame.filename.startswith(hidden)
            and not any(Path(frame.filename).is_relative_to(folder) for folder in outside)
        ]
        frames = "".join(traceback.format_list(user_frames)).rstrip()
        message = f"{what} raised {type(problem).__name__}: {problem}"
        raise EngramError(f"{message}\n{frames}" if frames else message) from problem


# -- readable quantities -----------------------------------------------------------------------------------------------


def size_in_words(size: float) -> str:
    """Format bytes with three digits: 950 B, 12.3 kB, 4.56 MB, 2 TB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.0f} PB" if size >= 999.5 else f"{size:.3g} PB"


def duration_in_words(seconds: float) -> str:
    """Format a duration in its two largest units: 8 s, 3 min 20 s, 5 h 2 min, 4 days 1 h."""
    whole = round(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 1:
        return f"{whole} s"
    if hours < 1:
        return f"{minutes} min {whole % 60} s"
    if hours < 48:
        return f"{hours} h {minutes % 60} min"
    return f"{days} days {hours % 24} h"
