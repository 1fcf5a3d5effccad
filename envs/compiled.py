"""How the rules of games are compiled: one decorator for every function that runs inside the batch loops."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])
_SHARED = ("compiled", "arrays", "randomness", "planes")
"""Modules of this folder whose functions games compile into their own."""


def kernel(function: Function) -> Function:
    """Compile a function of a game with numba, and keep the result on disk where that is possible.

    * Everything is inlined: a game's state is a tuple of a dozen arrays, which costs more to pass than to use.
    * No reference counts: numba would count up and down every array of the state in every call, ten times the cost of
      the rules themselves. So kernels cannot allocate arrays, nor write `a[i] = b` for arrays (numba may need a copy):
      they loop over the elements, which costs nothing.
    * Compiled code on disk is renewed when the game's files or the shared ones change. Numba by itself looks only at
      the file of the outermost function, and would go on playing by old rules that it had inlined.
    """
    options: dict[str, Any] = {"forceinline": True, "error_model": "numpy", "_nrt": False}
    try:
        compiled: Any = njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to write
        return njit(**options)(function)  # pyright: ignore[reportReturnType]
    compiled._cache._cache_file._source_stamp = _stamp(function)
    return compiled


def _stamp(function: Callable[..., Any]) -> tuple[tuple[str, float, int], ...]:
    """Name, time and size of every file that `function` may be compiled from: those that share its first word."""
    source = Path(function.__code__.co_filename)
    files = {*source.parent.glob(f"{source.stem.split('_')[0]}*.py"), *(source.parent / f"{s}.py" for s in _SHARED)}
    stats = [(file.name, file.stat()) for file in sorted(files) if file.exists()]
    return tuple((name, stat.st_mtime, stat.st_size) for name, stat in stats)
