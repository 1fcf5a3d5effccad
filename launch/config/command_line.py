"""Parse command-line arguments into a configuration dataclass (tyro); report a user's mistake in one clear line."""

import argparse
import ast
import contextlib
import difflib
import faulthandler
import io
import os
import re
import shutil
import sys
import textwrap
import tomllib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from ...base.errors import MISTAKE, EngramError, refuse
from ...base.units import Minutes, Seconds, count, duration, in_words, number

FLAG = re.compile(r"--[a-z][a-z0-9._-]*")
VERSION = "--version"
RL_TRAIN = "from engram.launch.entry import run; run('rl-train')"  # As a program for Python
TRUST, LIST, DRY_RUN = "--trust-checkpoint", "--list", "--dry-run"
WIDE = 1000  # Columns of the output if it is not a terminal
INTERRUPTED = 130  # Exit code after Ctrl-C, by the convention of shells
Config = TypeVar("Config")
_NAMES = tomllib.loads(Path(__file__).with_name("names.toml").read_text("utf-8"))
OTHER_NAMES: dict[str, str] = {name: ours for ours, names in _NAMES["other_names"].items() for name in names}
MEANINGS: dict[str, str] = {name: entry["text"] for entry in _NAMES["explained"] for name in entry["names"]}
"""Explanations of names in other libraries whose meaning differs."""


def run_command(name: str, main: Callable[[Sequence[str]], int], arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the `main` of a command and exit; an EngramError prints one line and sets the exit code."""
    argv = sys.argv[1:] if arguments is None else list(arguments)
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__, all_threads=False)  # a crash in native code prints the Python line
    with contextlib.suppress(OSError):  # the working directory may have been removed
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # last: a user's module must not shadow a library's module
    if VERSION in argv:
        print(f"{name} {sys.modules[__name__.partition('.')[0]].__version__}")
        sys.exit(0)
    try:
        code = main(argv)
    except EngramError as problem:
        print(f"{name}: {problem}", file=sys.stderr)
        code = problem.exit_code
    except BrokenPipeError:
        code = 1
    except (MemoryError, RuntimeError) as problem:
        if "allocat" not in str(problem):  # numpy's and torch's messages name the allocation
            raise
        print(f"{name}: out of memory: {problem}", file=sys.stderr)
        code = MISTAKE
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


def make_console() -> Console:
    """Create a console for tables. Brackets are not markup, since file names and other messages contain them."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    return console


def parse(
    cls: type[Config],
    arguments: Sequence[str],
    prog: str,
    description: str,
    *,
    default: Config | None = None,
    other_flags: tuple[str, ...] = (),
    explain: Callable[[str], str] = lambda _: "",
) -> Config:
    """Parse arguments into a configuration dataclass; `--help` and mistakes in the form print and exit, as in tyro.
    The command parses `other_flags` itself; `explain` returns where an unknown setting belongs, or ""."""
    argv, flags = dashed(arguments), {*flags_of(cls), *other_flags, VERSION, "--help"}
    for flag in (argument.partition("=")[0] for argument in argv):
        if FLAG.fullmatch(flag) and not {flag, flag.replace("no-", "", 1)} & flags:
            name = flag[2:].replace("-", "_")
            meant = "--" + OTHER_NAMES.get(name, "").replace("_", "-")
            near = [meant] if meant in flags else difflib.get_close_matches(flag, sorted(flags), n=3)
            advice = f"did you mean: {', '.join(near)}?" if near else f"{prog} --help lists the flags"
            raise EngramError(f"unknown flag {flag!r}; {explain(name) or advice}")
    width = min(100, shutil.get_terminal_size().columns) - 2
    paragraphs = [*description.split("\n\n"), f"{VERSION} prints the version of engram."]
    # Every line begins with a space, since tyro joins lines that begin with a letter; tables keep their lines.
    wrapped = [
        text.replace("\n", "\n ") if "  " in text else textwrap.fill(text, width, subsequent_indent=" ")
        for text in paragraphs
    ]
    keywords: dict[str, Any] = {} if default is None else {"default": default}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(
                Annotated[cls, tyro.conf.arg(prefix_name=False)],  # pyright: ignore
                prog=prog,
                description=" \n\n ".join(wrapped),
                args=argv,
                registry=_registry(),
                **keywords,
            )
    except SystemExit as stop:
        problem = stop.__context__
        while problem is not None:
            if any(frame.name == "__post_init__" for frame in traceback.extract_tb(problem.__traceback__)):
                raise EngramError(str(problem)) from None  # the configuration rejects its values
            problem = problem.__context__
        print(printed.getvalue(), file=sys.stderr, end="")
        raise


def dashed(arguments: Sequence[str]) -> list[str]:
    """Replace `_` with `-` in the names of flags."""
    result: list[str] = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        result.append(name.replace("_", "-") + equals + value if FLAG.fullmatch(name) else argument)
    return result


def value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """Find the last value of `flag` (`flag value` or `flag=value`), or None."""
    return _split(arguments, (flag,))[0][flag]


def without(arguments: Sequence[str], flags: tuple[str, ...]) -> list[str]:
    return _split(arguments, flags)[1]


def _split(arguments: Sequence[str], flags: tuple[str, ...]) -> tuple[dict[str, str | None], list[str]]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in flags:
        parser.add_argument(flag, dest=flag)
    try:
        values, rest = parser.parse_known_args(arguments)
    except argparse.ArgumentError as problem:
        raise EngramError(f"{problem.argument_name} needs a value") from None
    for flag, value in vars(values).items():
        refuse(value == "", f"{flag} needs a value")
    return vars(values), rest


def _key_values(pairs: Sequence[str]) -> dict[str, Any]:
    """Convert `KEY=VALUE` arguments to a dict; Python literals are parsed, all other values are strings."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        refuse(not (key and equals), f"{pair!r} is not of the form KEY=VALUE")
        values[key.replace("-", "_")] = _literal(text)
    return values


def _literal(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return list(value) if isinstance(value, tuple) else value


def flags_of(cls: Any) -> set[str]:
    return {"--" + name.replace("_", "-") for name in settings_of(cls)}


def settings_of(
    cls: Any, prefix: str = "", bare: bool = False, path: tuple[str, ...] = ()
) -> dict[str, tuple[str, ...]]:
    """Return the path of each setting, the names of nested fields, by the name that users write. Parts annotated with
    OmitArgPrefixes add no prefix to their settings."""
    paths: dict[str, tuple[str, ...]] = {}
    hints = get_type_hints(cls, include_extras=True)
    for name in (field.name for field in fields(cls)):
        hint = hints[name]
        inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if is_dataclass(inner):
            omit = bare or inner is not hint
            paths |= settings_of(inner, "" if omit else f"{prefix}{name}.", omit, (*path, name))
        else:
            paths[prefix + name] = (*path, name)
    return paths


_UNITS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    int: ("INT", count),
    float: ("FLOAT", number),
    Seconds: ("DURATION", partial(duration, kind=Seconds)),
    Minutes: ("DURATION", partial(duration, kind=Minutes)),
}
"""Placeholder in `--help`, and parser, of each type of number."""


def _registry() -> ConstructorRegistry:
    """Return tyro's rules for parsing numbers and free dicts (KEY=VALUE arguments)."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def _(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:  # pyright: ignore
        kind: Any = info.type
        if kind == dict[str, Any]:
            return PrimitiveConstructorSpec(
                nargs="*",
                metavar="KEY=VALUE",
                instance_from_str=_key_values,
                is_instance=lambda value: isinstance(value, dict),
                str_from_instance=lambda value: [f"{k}={v}" for k, v in value.items()],
            )
        if kind not in _UNITS:
            return None
        metavar, convert = _UNITS[kind]
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=metavar,
            instance_from_str=lambda texts: convert(texts[0]),
            is_instance=lambda value: type(value) is int or (kind is not int and type(value) is float),
            str_from_instance=lambda value: [in_words(value, kind)],
        )

    return registry
