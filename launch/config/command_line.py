"""Parse command-line arguments into a configuration dataclass; report a user's mistake in one clear line.

tyro creates flags from the fields of a configuration dataclass. Every command's entry point is `run_command`.
"""

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
from collections.abc import Callable, Generator, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from ...base.errors import MISTAKE, EngramError, refuse
from ...base.messages import OTHER_NAMES
from ...base.places import cache_folder, writable_home
from ...base.units import count, duration, in_words, is_duration, number
from .settings.renamed import FORMER_FLAGS

FLAG = re.compile(r"--[a-z][a-z0-9._-]*")
VERSION = "--version"
TRUST, LIST, DRY_RUN = "--trust-checkpoint", "--list", "--dry-run"
WIDE = 1000  # Columns of the output if it is not a terminal
INTERRUPTED = 130  # Exit code after Ctrl-C, by the convention of shells
_BORDER = re.compile(r"^[\s|│┃-]+|[\s|│┃]+$")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_RULE = re.compile(r"[\s|│─━-]*")
Config = TypeVar("Config")


def run_command(name: str, main: Callable[[Sequence[str]], int], arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the `main` of a command and exit; an EngramError prints one line and sets the exit code. An unhandled Ctrl-C
    exits with 130. `module:Class` may be in the working directory."""
    argv = sys.argv[1:] if arguments is None else list(arguments)
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__, all_threads=False)  # a crash in native code prints the Python line
    if writable_home() is None:
        with contextlib.suppress(OSError):
            os.environ.setdefault("MPLCONFIGDIR", str(cache_folder() / "matplotlib"))
    with contextlib.suppress(OSError):  # the working directory may have been removed
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # last: a user's module must not shadow a library's module
    if VERSION in argv:
        print(f"{name} {version()}")
        sys.exit(0)
    try:
        code = main(argv)
    except EngramError as problem:
        print(f"{name}: {printable(str(problem))}", file=sys.stderr)
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
    """Create a console for tables: as wide as the terminal, or as the tables if the output is not a terminal. Brackets
    are not markup, since file names and messages of other libraries contain them."""
    console = Console(highlight=False, markup=False)
    wide = console.is_terminal or "COLUMNS" in os.environ
    return console if wide else Console(highlight=False, markup=False, width=WIDE)


def version() -> str:
    """Return the installed version of engram."""
    return sys.modules[__name__.partition(".")[0]].__version__


def printable(text: str) -> str:
    """Escape undecodable bytes of file names and control characters, so that every terminal can print a text."""
    escaped = text.encode(sys.stderr.encoding or "utf-8", "backslashreplace").decode(sys.stderr.encoding or "utf-8")
    return "".join(c if c.isprintable() or c in "\n " else c.encode("unicode_escape").decode() for c in escaped)


def parse(
    cls: type[Config],
    arguments: Sequence[str],
    prog: str,
    description: str,
    *,
    default: Config | None = None,
    other_flags: tuple[str, ...] = (),
) -> Config:
    """Parse arguments into a configuration dataclass; `--help` prints and exits, as in tyro.

    Args:
        cls: the dataclass; without `default`, its own defaults apply.
        description: introduction of `--help`.
        default: values of settings that no flag sets.
        other_flags: flags that the command parses itself; an error message suggests them for similar unknown flags.

    Raises:
        EngramError: unknown flag or argument, invalid value, or invalid combination of values.
    """
    keywords: dict[str, Any] = {} if default is None else {"default": default}
    unprefixed: Any = Annotated[cls, tyro.conf.arg(prefix_name=False)]  # pyright: ignore[reportInvalidTypeForm]
    flags = {*flags_of(cls), *other_flags, VERSION, "--help"}
    argv = dashed(arguments)
    with _complaints(argv, flags, prog):
        config, unknown = tyro.cli(
            unprefixed,
            prog=prog,
            description=_wrap(f"{description}\n\n{VERSION} prints the version of engram."),
            args=argv,
            **keywords,
            return_unknown_args=True,
            registry=_registry(),
        )
    if unknown:
        raise EngramError(unknown_word(unknown[0], flags, prog))
    return config


def _wrap(text: str) -> str:
    """Wrap paragraphs to the terminal's width, at most 100 columns; tables keep their lines. Every line begins with a
    space, since tyro joins lines that begin with a letter."""
    width = min(100, shutil.get_terminal_size().columns) - 2
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        aligned = "  " in paragraph
        lines += ["", *(paragraph.splitlines() if aligned else textwrap.wrap(paragraph, width))]
    return "\n".join(line and f" {line}" for line in lines[1:])


def dashed(arguments: Sequence[str]) -> list[str]:
    """Replace `_` with `-` in the names of flags."""
    result: list[str] = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        result.append(name.replace("_", "-") + equals + value if FLAG.fullmatch(name) else argument)
    return result


def value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """Find the last value of `flag` (`flag value` or `flag=value`), or None. Raises EngramError for a missing value."""
    value: str | None = None
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            value = argument.partition("=")[2]
        elif argument == flag:
            missing = i + 1 == len(arguments) or FLAG.fullmatch(arguments[i + 1])
            value = "" if missing else arguments[i + 1]
        else:
            continue
        refuse(not value, f"{flag} needs a value")
    return value


def without(arguments: Sequence[str], flags: tuple[str, ...]) -> list[str]:
    """Remove these flags and their values from arguments."""
    remaining: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in flags:
            skip = True
        elif not argument.startswith(tuple(f"{flag}=" for flag in flags)):
            remaining.append(argument)
    return remaining


def key_values(pairs: Sequence[str]) -> dict[str, Any]:
    """Convert `KEY=VALUE` arguments to a dict; Python literals are parsed, all other values are strings."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        refuse(not (key and equals), f"{pair!r} is not of the form KEY=VALUE")
        if (name := key.replace("-", "_")) in values:
            raise ValueError(f"{name} is given twice, last as {pair!r}; allowed: once")
        values[name] = _literal(text)
    return values


def _literal(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return list(value) if isinstance(value, tuple) else value


def unknown_word(argument: str, flags: set[str], prog: str) -> str:
    """Return the message for an argument that belongs to no flag, with the most similar flags."""
    name = argument.partition("=")[0]
    dashes = name.startswith("-")
    message = f"unknown flag {name!r}" if dashes else f"unexpected argument {argument!r}"
    plain = name.lstrip("-").lower()
    meant = "--" + (OTHER_NAMES | FORMER_FLAGS).get(plain.replace("-", "_"), "").replace("_", "-")
    near = [meant] if meant in flags else difflib.get_close_matches(f"--{plain}", sorted(flags), n=3)
    if near and (dashes or "=" in argument):
        return f"{message}; did you mean: {', '.join(near)}?"
    return f"{message}; {prog} --help lists the flags"


def flags_of(cls: Any) -> set[str]:
    """Return all flags of a configuration dataclass."""
    return {"--" + name.replace("_", "-") for name in settings_of(cls)}


Path = tuple[str, ...]  # Names of nested fields, from the configuration to a field of one of its parts


def settings_of(cls: Any, prefix: str = "", bare: bool = False, path: Path = ()) -> dict[str, Path]:
    """Return the paths of a configuration dataclass's settings by the names that users write. Parts annotated with
    OmitArgPrefixes add no prefix to their settings."""
    paths: dict[str, Path] = {}
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


def _registry() -> ConstructorRegistry:
    """Return tyro's rules for parsing numbers and free dicts (KEY=VALUE arguments)."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def _(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:  # pyright: ignore
        if info.type != dict[str, Any]:
            return None
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar="KEY=VALUE",
            instance_from_str=key_values,
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda value: [f"{k}={v}" for k, v in value.items()],
        )

    @registry.primitive_rule
    def _(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:  # pyright: ignore
        kind: Any = info.type
        if kind not in (int, float) and not is_duration(kind):
            return None
        whole = kind is int
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT" if whole else "DURATION" if is_duration(kind) else "FLOAT",
            instance_from_str=lambda texts: (
                count(texts[0]) if whole else duration(texts[0], kind) if is_duration(kind) else number(texts[0])
            ),
            is_instance=lambda value: type(value) is int or (not whole and type(value) is float),
            str_from_instance=lambda value: [in_words(value, kind)],
        )

    return registry


@contextlib.contextmanager
def _complaints(arguments: Sequence[str], flags: set[str], prog: str) -> Generator[None]:
    """Convert tyro's error, a box of several lines and exit code 2, to an EngramError of one line."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            yield
    except ValueError as problem:
        raise EngramError(str(problem)) from problem
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        # An argument that belongs to no flag often causes tyro's error about a missing argument.
        names = flags | {re.sub(r"([^.-]+(?:-[^.-]+)*)$", r"no-\1", flag) for flag in flags}
        unknown = (text for text in arguments if FLAG.fullmatch(flag := text.partition("=")[0]) and flag not in names)
        argument = next(unknown, None)
        problem = _one_line(output.getvalue()) if argument is None else unknown_word(argument, flags, prog)
        raise EngramError(problem) from None


def _one_line(box: str) -> str:
    """Extract the sentence in tyro's box, without title and help; return the box unchanged if it has another form."""
    lines = [_COLORS.sub("", line) for line in box.splitlines()]
    inside = [] if len(lines) < 3 else lines[1:-1]
    sentence: list[str] = []
    for line in inside:
        if _RULE.fullmatch(line) and sentence:
            break
        if text := _BORDER.sub("", line):
            sentence.append(text)
    text = " ".join(sentence)
    if not text:
        return box.strip() or "the arguments could not be parsed"
    if missing := re.fullmatch(r"Missing from \S+: (\S+) (.*?) ?(?:\(required\))?", text):
        return f"missing: {missing[1]}, {missing[2]}"
    if missing := re.match(r"Missing value for argument '([^']+)'", text):
        return f"{missing[1]} needs a value"
    if choice := re.match(r"invalid choice (.*) for argument '([^']+)'\. Expected one of \((.*?),?\)\.?$", text):
        return f"{choice[2]} is {choice[1]}; allowed: {choice[3].replace(chr(39), '')}"
    if union := re.fullmatch(r"(?:Error parsing )?(\S+): no type matching (\S+) could be .* from \[(.*)\]\.?", text):
        return f"{union[1]} is {union[3]}; allowed: {union[2]}"
    if wrong := re.fullmatch(r"Error parsing (\S+): Could not find valid parse for arguments: \[(.*)\]\.?", text):
        form = re.search(rf"{wrong[1]} (\S.*?)[\s|│]*$", "\n".join(inside), re.MULTILINE)
        return f"{wrong[1]} is {wrong[2]}; allowed: {form[1] if form else 'other values'}"
    return re.sub(r"^Error parsing (?!--)\S+: ", "", text).removeprefix("Error parsing ")
