"""Configurations as nested dicts of plain values, for files and calls; differences between them; URLs of stores."""

import contextlib
import copy
import math
import re
import types
from collections.abc import Generator, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fsspec.core import url_to_fs

from ...base.errors import EngramError, advice, refuse
from ...base.units import Minutes, Seconds, count, duration

REMOVED = ("pbt.patience",)  # Setting of earlier versions, as in the runs in zoo/ and training/
NONE = "None"  # Replaces None among free parameters of environments, cores and algorithms: TOML has no null value
# Parsers of texts such as 20k and 10m, by the type of the field
_TEXTS: dict[Any, Any] = {int: count, **{kind: partial(duration, kind=kind) for kind in (Seconds, Minutes)}}
SECRET = "***"  # Placeholder for secrets
PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
_TOKEN = re.compile(rf"(?<!sftp)(?<!ssh)://[^/@]*@|{PASSWORD.pattern}")  # Before @, sftp and ssh have a user name
_QUERY = re.compile(r"[?#].*?(?=::|$)", re.DOTALL)


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a configuration to nested dicts of plain values for a file, without the secrets of URLs."""
    plain: dict[str, Any] = {}
    for name in (field.name for field in fields(config)):
        value = getattr(config, name)
        if is_dataclass(value):
            value = to_dict(value)
        elif name in ("checkpoint_url", "start_from") and value is not None:
            value = redacted(value)
        elif isinstance(value, dict):
            value = {key: NONE if part is None else copy.deepcopy(part) for key, part in value.items()}
        plain[name] = value
    return plain


def from_dict(cls: type[Any], data: Any, path: str = "") -> Any:
    """Create a configuration of dataclass `cls` from nested dicts. Raises EngramError naming an unknown setting."""
    refuse(not isinstance(data, dict), f"{path.rstrip('.')} is {data!r}; expected a table of settings")
    hints = get_type_hints(cls)
    data = {key: value for key, value in data.items() if path + key not in REMOVED}
    for key in data:
        if key not in hints:
            raise EngramError(f"unknown setting {path + key!r}; {advice(key, sorted(hints), 1)}")
    return cls(**{key: typed(hints[key], value, path + key) for key, value in data.items()})


def flat_settings(config: Any, prefix: str = "", whole: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield all settings of a configuration, a dataclass or nested dicts, as (dotted name, value). With `whole`, a free
    dict of a dataclass, such as `env_args`, is one value."""
    items = config if isinstance(config, dict) else {x.name: getattr(config, x.name) for x in fields(config)}
    for key, value in items.items():
        if is_dataclass(value) or (isinstance(value, dict) and not whole):
            yield from flat_settings(value, f"{prefix}{key}.", whole)
        else:
            yield prefix + key, value


def differences(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """List settings (dotted name, old, new) in which two configurations differ, None if unset; see `flat_settings`."""
    before, after = (dict(flat_settings(config, whole=True)) for config in (old, new))
    return [
        (name, before.get(name), after.get(name))
        for name in after | before
        if _as_read(before.get(name)) != _as_read(after.get(name))
    ]


def _as_read(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_read(x) for key, x in value.items()}
    return [_as_read(x) for x in value] if isinstance(value, list | tuple) else value


def typed(hint: Any, value: Any, name: str) -> Any:
    """Convert a plain value to the type of its field. Raises EngramError for a value of another type."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if is_dataclass(hint):
        return from_dict(hint, value, f"{name}.")  # pyright: ignore[reportArgumentType]
    for option in inner if origin in (types.UnionType, Union) else ():
        with contextlib.suppress(ValueError):
            return typed(option, value, name)
    if hint in _TEXTS and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return _TEXTS[hint](value)
    if origin is Literal and any(value == option and type(value) is type(option) for option in inner):
        return value
    if origin is dict and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: None if x == NONE else typed(inner[1], x, f"{name}.{key}") for key, x in value.items()}
    if origin is tuple and isinstance(value, list | tuple) and (inner[-1] is ... or len(value) == len(inner)):
        hints = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(typed(kind, x, f"{name}[{i}]") for i, (kind, x) in enumerate(zip(hints, value, strict=True)))
    is_flag = isinstance(value, bool)  # which is also an int
    if hint in (float, Seconds, Minutes) and isinstance(value, int | float) and not is_flag and math.isfinite(value):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:  # such as 1e6
        return int(value)
    if hint in (int, str, bool, type(None)) and isinstance(value, hint) and is_flag == (hint is bool):
        return value
    raise EngramError(f"{name} is {value!r}; expected {hint.__name__ if isinstance(hint, type) else hint}")


def is_url(location: str) -> bool:
    return "://" in location


def redacted(url: str) -> str:
    """Remove tokens and signed queries from a URL, or from a chain of URLs (zip://x::https://host/y.zip)."""
    return _QUERY.sub(f"?{SECRET}", _TOKEN.sub(f"://{SECRET}@", url)) if is_url(url) else url


def first_line(problem: Exception, url: str) -> str:
    """Return an exception's type and first line, without the secrets of `url`."""
    return f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}".replace(url, redacted(url))


@contextlib.contextmanager
def store_errors(message: str, url: str) -> Generator[None]:
    """Convert the body's exceptions, which depend on the kind of store, to EngramError: `message (first line)`."""
    try:
        yield
    except EngramError:
        raise
    except Exception as problem:
        raise EngramError(f"{message} ({first_line(problem, url)})") from problem


def open_store(url: str) -> tuple[Any, str]:
    """Return the file system of a URL or path, and the path in it; call inside `store_errors`."""
    files, root = url_to_fs(url)  # opens a chain of URLs
    return files, root.rstrip("/")
