"""Functions compiled by numba: `kernel` for environment rules, `compiled` for the arithmetic of cores on a CPU."""

import contextlib
import fcntl
import logging
import os
import pickle
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.compiler_lock import global_compiler_lock

from .sources import stamp

Function = TypeVar("Function", bound=Callable[..., Any])

JIT = not numba.config.DISABLE_JIT  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]
"""Whether functions are compiled. NUMBA_DISABLE_JIT=1 runs them as Python, so that a debugger can step through them."""

enabled = JIT and os.environ.get("ENGRAM_COMPILED", "1") != "0"
"""Whether compiled routes and faster matrix multiplications replace the network's equivalent torch code.
With `ENGRAM_COMPILED=0`, torch computes the equations as written."""


def kernel(function: Function) -> Function:
    """Compile a function of an environment's rules and cache the result on disk where possible. Such functions

    * are inlined into the loop over the batch: passing a state of a dozen arrays would cost more than the computation.
    * do not count references, which would cost ten times as much as the rules. So a kernel cannot allocate an array or
      assign one array to `a[i]` (numba may need a copy); it loops over the elements instead, at no extra cost.
    * check neither division by zero nor indices outside an array.
    * must also run as Python (NUMBA_DISABLE_JIT=1), where numpy integers wrap around as in compiled code.
    """
    return _compile(function, forceinline=True, error_model="numpy", _nrt=False)


def compiled(*fastmath: str, inline: bool = False, allocates: bool = True) -> Callable[[Function], Function]:
    """Compile a function of a core and cache the result on disk where possible. Such functions

    * release the GIL, so other threads run concurrently: no two concurrent calls may write to the same memory.
    * may round a * b + c once instead of twice. `fastmath` enables further optimizations: "reassoc" and "nsz" allow
      sums to be reordered, so that the CPU adds several values at once.
    * must be `inline` if other compiled functions call them. Otherwise the process that compiles a function rounds
      differently from those that load it from disk.
    * do not check indices; callers check shapes before the call.
    * do not count references with `allocates=False`: loops over short rows of arrays take half the time. Such a
      function cannot create an array.
    """
    options: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", *fastmath}, "nogil": True}
    options |= {"inline": "always"} if inline else {}
    options |= {} if allocates else {"_nrt": False}
    return lambda function: _compile(function, **options)


def _compile(function: Function, **options: Any) -> Function:
    if not JIT:
        return np.errstate(over="ignore")(function)
    try:
        made: Any = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba finds no writable directory
        return numba.njit(**options)(function)  # pyright: ignore[reportReturnType]
    cache = made._cache
    # Numba's own stamp covers only the file of the outermost function: numba would run outdated inlined code.
    cache._cache_file._source_stamp = stamp(function)
    for access in ("load_overload", "save_overload"):
        setattr(cache, access, _tolerate_failures(getattr(cache, access), cache._cache_file.flush))
    lock = Path(cache.cache_path, f"{function.__module__}.{function.__qualname__}.lock")
    compile_for = made.compile

    def compile_in_turn(signature: Any) -> Any:
        with global_compiler_lock, _lock(lock):  # in this order, so that this process's other threads wait too
            return compile_for(signature)

    made.compile = compile_in_turn
    return made


@contextlib.contextmanager
def _lock(path: Path) -> Generator[None]:
    """Let one process at a time compile, if the folder is writable: the others load what the first one has compiled."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(path.open("w")), fcntl.LOCK_EX)
        yield


def _tolerate_failures(access: Callable[..., Any], flush: Callable[[], None]) -> Callable[..., Any]:
    """Wrap `access`, which loads or saves compiled code, to do nothing on failure (full, read-only or damaged disk).
    Files of an earlier version may refer to types that no longer exist; newly compiled code replaces them."""

    def attempt(*arguments: Any) -> Any:
        try:
            with contextlib.suppress(AttributeError, ImportError):
                return access(*arguments)
            flush()
        except (OSError, EOFError, pickle.UnpicklingError) as problem:
            logging.getLogger(__name__).info("compiled code on disk is not used: %s", problem)
        return None

    return attempt
