"""Functions compiled by numba: the rules of the environments, and the fast routes of the memory cores on a CPU.

Every compiled function of engram is made by one of two decorators: `kernel` for rules of environments, `compiled` for
sums of cores. They differ in numba's options only. No other module calls numba's `njit`.
"""

import contextlib
import logging
import pickle
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import event

from .places import cache_folder
from .sources import stamp

try:
    from numba.core.options import DefaultOptions
except ImportError:  # moved: then only the documented options are used
    DefaultOptions = None

Function = TypeVar("Function", bound=Callable[..., Any])

JIT = not numba.config.DISABLE_JIT  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]
"""Whether functions are compiled at all. NUMBA_DISABLE_JIT=1 runs them as Python, to step through them."""


def kernel(function: Function) -> Function:
    """Compile a function of an environment's rules, and keep the result on disk where that is possible.

    Laws of such functions:

    * Everything is inlined into the loop over the batch: an environment's state is a tuple of a dozen arrays, which
      costs more to pass than to use.
    * No reference counts: numba would count up and down every array of the state in every call, ten times the cost of
      the rules themselves. So a kernel cannot allocate an array, nor write `a[i] = b` for arrays (numba may need a
      copy): it loops over the elements, which costs nothing.
    * Division by zero and indices outside an array are not checked: they must not occur.
    * It must also run as Python (NUMBA_DISABLE_JIT=1). Integers of numpy wrap around there as in compiled code.
    """
    return _compile(function, forceinline=True, error_model="numpy", _nrt=False)


def compiled(*fastmath: str, inline: bool = False) -> Callable[[Function], Function]:
    """Compile a function of a core, and keep the result on disk where that is possible.

    Laws of such functions:

    * The interpreter's lock is released: other threads run meanwhile, so no two calls may write the same memory.
    * a * b + c may be rounded once instead of twice. `fastmath` names what else may change about a sum: with "reassoc"
      and "nsz" its order, so that the processor adds several numbers at once.
    * A function that others call must be `inline`: called, it would be optimized one way in the process that compiles
      it and another way in those that find it on disk, and round differently.
    * Indices outside an array are not checked: shapes are checked before the call.
    """
    options: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", *fastmath}, "nogil": True}
    if inline:
        options["inline"] = "always"
    return lambda function: _compile(function, **options)


@contextlib.contextmanager
def when_compiling(say: Callable[[], None]) -> Generator[None]:
    """Call `say` once, when inside of the `with` statement this process begins to compile a function.

    Not when compiled code is found on disk.
    """

    class Once(event.Listener):
        said = False

        def on_start(self, event: Any) -> None:
            if not self.said:
                self.said = True
                say()

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Once()):
        yield


def is_kept(function: Callable[..., Any]) -> bool:
    """Whether there is compiled code on disk where that of `function`, or of its neighbors, would be."""
    folder = getattr(getattr(function, "_cache", None), "cache_path", None)
    return folder is not None and next(Path(folder).parent.rglob("*.nbi"), None) is not None


def _compile(function: Function, **options: Any) -> Function:
    """`function` compiled with those of the options that this numba knows."""
    if not JIT:
        return np.errstate(over="ignore")(function)
    known = {name: value for name, value in options.items() if name[0] != "_" or hasattr(DefaultOptions, name)}
    try:
        made: Any = numba.njit(cache=True, **known)(function)
    except RuntimeError:  # numba finds no directory to write to
        try:
            with _private_cache():
                made = numba.njit(cache=True, **known)(function)
        except (RuntimeError, OSError):
            return numba.njit(**known)(function)  # pyright: ignore[reportReturnType]
    file = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if not hasattr(file, "_source_stamp"):
        # Without its own stamp numba looks at the file of the outermost function only, and would run old parts.
        return numba.njit(**known)(function)  # pyright: ignore[reportReturnType]
    file._source_stamp = stamp(function)  # pyright: ignore[reportOptionalMemberAccess]
    for access in ("load_overload", "save_overload"):
        flush: Callable[[], None] = getattr(file, "flush", lambda: None)
        setattr(made._cache, access, _forgiving(getattr(made._cache, access), flush))
    return made


@contextlib.contextmanager
def _private_cache() -> Generator[None]:
    """Inside it numba keeps compiled code in a private folder for temporary files. Raises OSError."""
    settings: Any = numba.config  # pyright: ignore[reportPrivateImportUsage]
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(cache_folder() / "numba")
    try:
        yield
    finally:
        settings.CACHE_DIR = before


def _forgiving(access: Callable[..., Any], flush: Callable[[], None]) -> Callable[..., Any]:
    """`access` to compiled code on disk; where that fails (full, read-only or damaged), nothing is found and kept.

    What an earlier version left there may name types that are no more; it makes room for what is compiled now.
    """

    def attempt(*arguments: Any) -> Any:
        try:
            try:
                return access(*arguments)
            except (AttributeError, ImportError):
                flush()
        except (OSError, EOFError, pickle.UnpicklingError) as problem:
            logging.getLogger(__name__).info("compiled code on disk is not used: %s", problem)
            return None

    return attempt
