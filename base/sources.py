"""Files that a compiled function may be compiled from, for the validity of compiled code on disk."""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def stamp(function: Callable[..., Any]) -> str:
    """Hash of all files that `function` may be compiled from: its own file, and those that its module imports, whose
    functions are inlined and whose constants are compiled in."""
    content = hashlib.sha256()
    for file in sorted({function.__code__.co_filename, *sources(function.__module__)}):
        with contextlib.suppress(OSError):
            content.update(_content(file))
    return content.hexdigest()


@functools.cache
def _content(file: str) -> bytes:
    return hashlib.sha256(Path(file).read_bytes()).digest()


@functools.cache
def sources(module: str) -> tuple[str, ...]:
    """Files of `module` and of all modules that it imports, directly or indirectly, and that belong to engram or its
    package or are in its folder."""
    files: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = getattr(sys.modules.get(name), "__file__", None)
        if name not in files and file is not None and file.endswith(".py"):
            files[name] = file
            waiting += [other for other in _imports(name, file) if _is_related(other, module)]
    return tuple(files.values())


def _is_related(name: str, module: str) -> bool:
    tops = {__name__.partition(".")[0], module.partition(".")[0]}
    files = [getattr(sys.modules.get(key), "__file__", None) or key for key in (name, module)]
    return name.partition(".")[0] in tops or Path(files[0]).parent == Path(files[1]).parent


def _imports(name: str, file: str) -> Iterator[str]:
    """Yield names imported by a module: modules, or objects inside them, which cannot always be distinguished."""
    package = getattr(sys.modules[name], "__package__", None) or ""
    for node in ast.walk(ast.parse(Path(file).read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            origin = importlib.util.resolve_name(origin, package) if node.level else origin
            # `from package import module` runs the package's __init__, but this module's code contains nothing of it
            inside = [f"{origin}.{alias.name}" for alias in node.names]
            modules = [path for path in inside if path in sys.modules]
            yield from (modules or [origin])


def is_kept(function: Callable[..., Any]) -> bool:
    """Whether the disk cache contains code compiled from the folder of `function`."""
    folder = getattr(getattr(function, "_cache", None), "cache_path", None)
    return folder is not None and next(Path(folder).parent.rglob("*.nbi"), None) is not None
