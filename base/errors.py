"""Exception for users' mistakes, and functions that raise it; a command prints its message and exits with its code."""

from collections.abc import Generator
from contextlib import contextmanager

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
