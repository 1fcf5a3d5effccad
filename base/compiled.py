"""Functions compiled by numba: environment rules, and fast routes of the memory cores on a CPU.

Two decorators make every compiled function of engram: `kernel` for environment rules and `compiled` for the arithmetic
of cores. They differ only in their numba options. No other module calls numba's `njit`.
"""

import contextlib
import fcntl
import logging
import os
import pickle
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock

from .places import cache_folder
from .sources import stamp

try:
    from numba.core.options import DefaultOptions
except ImportError:  # moved in this version of numba; only documented options are used
    DefaultOptions = None

Function = TypeVar("Function", bound=Callable[..., Any])

WAIT_SECONDS = 300.0  # Seconds to wait for another process that compiles the same function

JIT = not numba.config.DISABLE_JIT  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]
"""Whether functions are compiled. NUMBA_DISABLE_JIT=1 runs them as Python, so that a debugger can step through them."""

enabled = JIT and os.environ.get("ENGRAM_COMPILED", "1") != "0"
"""Whether compiled routes and faster matrix multiplications replace the network's equivalent torch code.
With `ENGRAM_COMPILED=0`, torch computes the equations as written."""


def kernel(function: Function) -> Function:
    """Compile a function of an environment's rules and cache the result on disk where possible.

    Rules for such functions:

    * Everything is inlined into the loop over the batch. An environment's state is a tuple of a dozen arrays;
      passing it would cost more than the computation.
    * References are not counted: updating the counts of all state arrays in every call would cost ten times as much
      as the rules. So a kernel cannot allocate an array or assign one array to `a[i]` (numba may need a copy);
      it loops over the elements instead, at no extra cost.
    * Division by zero and indices outside an array are not checked; neither may occur.
    * A kernel must also run as Python (NUMBA_DISABLE_JIT=1), where numpy integers wrap around as in compiled code.
    """
    return _compile(function, forceinline=True, error_model="numpy", _nrt=False)


def compiled(*fastmath: str, inline: bool = False, allocates: bool = True) -> Callable[[Function], Function]:
    """Compile a function of a core and cache the result on disk where possible.

    Rules for such functions:

    * The GIL is released, so other threads run concurrently: no two concurrent calls may write to the same memory.
    * a * b + c may be rounded once instead of twice. `fastmath` enables further optimizations: "reassoc"
      and "nsz" allow sums to be reordered, so that the CPU adds several values at once.
    * A function called by other compiled functions must be `inline`. Otherwise the process that compiles it optimizes
      it differently from the processes that load it from disk, and results are rounded differently.
    * Indices outside an array are not checked; callers check shapes before the call.
    * With `allocates=False`, numba does not count references: loops over short rows of arrays take half the time.
      Such a function cannot create an array.
    """
    options: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", *fastmath}, "nogil": True}
    if inline:
        options["inline"] = "always"
    if not allocates:
        options["_nrt"] = False
    return lambda function: _compile(function, **options)


@contextlib.contextmanager
def when_compiling(notify: Callable[[], None]) -> Generator[None]:
    """Call `notify` once if this process starts to compile a function inside the `with` statement. Loading compiled
    code from disk does not count."""

    class Once(event.Listener):
        called = False

        def on_start(self, event: Any) -> None:
            if not self.called:
                self.called = True
                notify()

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Once()):
        yield


def is_kept(function: Callable[..., Any]) -> bool:
    """Whether the disk cache contains code compiled from the folder of `function`."""
    folder = getattr(getattr(function, "_cache", None), "cache_path", None)
    return folder is not None and next(Path(folder).parent.rglob("*.nbi"), None) is not None


def _compile(function: Function, **options: Any) -> Function:
    """Compile `function` with those options that this version of numba supports."""
    if not JIT:
        return np.errstate(over="ignore")(function)
    supported = {name: value for name, value in options.items() if name[0] != "_" or hasattr(DefaultOptions, name)}
    try:
        made: Any = numba.njit(cache=True, **supported)(function)
    except RuntimeError:  # numba finds no writable directory
        try:
            with _private_cache():
                made = numba.njit(cache=True, **supported)(function)
        except (RuntimeError, OSError):
            return numba.njit(**supported)(function)  # pyright: ignore[reportReturnType]
    file = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if not hasattr(file, "_source_stamp"):
        # Numba's own stamp covers only the file of the outermost function: numba would run outdated inlined code.
        return numba.njit(**supported)(function)  # pyright: ignore[reportReturnType]
    file._source_stamp = stamp(function)  # pyright: ignore[reportOptionalMemberAccess]
    for access in ("load_overload", "save_overload"):
        flush: Callable[[], None] = getattr(file, "flush", lambda: None)
        setattr(made._cache, access, _tolerate_failures(getattr(made._cache, access), flush))
    made.compile = _once(
        made.compile, Path(made._cache.cache_path) / f"{function.__module__}.{function.__qualname__}.lock"
    )
    return made


def _once(compile_for: Callable[..., Any], path: Path) -> Callable[..., Any]:
    """Let one process at a time compile: processes that start together load what the first one has compiled."""

    def wait_and_compile(signature: Any) -> Any:
        with global_compiler_lock, _lock(path):  # in this order, so that this process's other threads wait too
            return compile_for(signature)

    return wait_and_compile


@contextlib.contextmanager
def _lock(path: Path) -> Generator[None]:
    """Lock a file; continue without the lock if its folder is not writable, or after waiting for WAIT_SECONDS."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("w"))
            end = time.monotonic() + WAIT_SECONDS
            while time.monotonic() < end:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.05)
        yield


@contextlib.contextmanager
def _private_cache() -> Generator[None]:
    """Make numba cache compiled code in a private temporary folder. Raises OSError."""
    settings: Any = numba.config  # pyright: ignore[reportPrivateImportUsage]
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(cache_folder() / "numba")
    try:
        yield
    finally:
        settings.CACHE_DIR = before


def _tolerate_failures(access: Callable[..., Any], flush: Callable[[], None]) -> Callable[..., Any]:
    """Wrap `access`, which loads or saves compiled code, to do nothing on failure (full, read-only or damaged disk).
    Files of an earlier version may refer to types that no longer exist; newly compiled code replaces them."""

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
