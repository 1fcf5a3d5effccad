"""From command-line words to a configuration dataclass, and from a user's mistake to one clear line.

Flags are made by tyro from the fields of a configuration dataclass. Every command's entry point is `run_command`.
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
from dataclasses import is_dataclass
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from ...base.errors import EngramError
from ...base.messages import OTHER_NAMES
from ...base.places import cache_folder, writable_home
from ...base.units import count, duration, in_words, is_duration, number

FLAG = re.compile(r"--[a-z][a-z0-9._-]*")
VERSION = "--version"
TRUST, LIST, DRY_RUN = "--trust-checkpoint", "--list", "--dry-run"
WIDE = 1000
"""Columns where output is no terminal."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells count it."""
_BORDER = re.compile(r"^[\s|│┃-]+|[\s|│┃]+$")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_RULE = re.compile(r"[\s|│─━-]*")
Config = TypeVar("Config")


def run_command(name: str, main: Callable[[Sequence[str]], int], arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line's `main` and exit; an EngramError is one line and its exit code.

    Ctrl-C where nobody else heeds it ends with 130. `module:Class` is found in the working directory.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__, all_threads=False)  # a crash in native code shows the Python line
    if writable_home() is None:
        with contextlib.suppress(OSError):
            os.environ.setdefault("MPLCONFIGDIR", str(cache_folder() / "matplotlib"))
    with contextlib.suppress(OSError):  # it may have been removed
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # last: a user's module must not replace one of a library
    if VERSION in words:
        print(f"{name} {version()}")
        sys.exit(0)
    try:
        code = main(words)
    except EngramError as problem:
        print(f"{name}: {printable(str(problem))}", file=sys.stderr)
        code = problem.exit_code
    except BrokenPipeError:
        code = 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


def make_console() -> Console:
    """A console for tables: as wide as the terminal, or where output is no terminal as wide as the tables are.

    Brackets are what they are, for names of files and messages of other libraries have them.
    """
    console = Console(highlight=False, markup=False)
    wide = console.is_terminal or "COLUMNS" in os.environ
    return console if wide else Console(highlight=False, markup=False, width=WIDE)


def version() -> str:
    """The version of engram that runs."""
    return sys.modules[__name__.partition(".")[0]].__version__


def printable(text: str) -> str:
    """A text that every terminal takes: bytes of a file name that are no text, and control characters, as escapes."""
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
    """A configuration dataclass from words; `--help` prints and exits, as tyro does.

    Args:
        cls: the dataclass; without `default`, its own defaults hold.
        description: what `--help` says first.
        default: what holds where no flag is given.
        other_flags: flags that the command reads by itself, to be named where an unknown one comes near.

    Raises:
        EngramError: an unknown flag or word, a bad value, or a combination of values that is not allowed.
    """
    given: dict[str, Any] = {} if default is None else {"default": default}
    unprefixed: Any = Annotated[cls, tyro.conf.arg(prefix_name=False)]  # pyright: ignore[reportInvalidTypeForm]
    known = {*flags_of(cls), *other_flags, VERSION, "--help"}
    words = dashed(arguments)
    with _complaints(words, known, prog):
        config, unknown = tyro.cli(
            unprefixed,
            prog=prog,
            description=_wrapped(f"{description}\n\n{VERSION} prints the version of engram."),
            args=words,
            **given,
            return_unknown_args=True,
            registry=_registry(),
        )
    if unknown:
        raise EngramError(unknown_word(unknown[0], known, prog))
    return config


def _wrapped(text: str) -> str:
    """Paragraphs as wide as the terminal, at most 100 columns; those in columns keep their lines.

    Every line begins with a space: tyro puts lines that begin with a letter behind one another.
    """
    width = min(100, shutil.get_terminal_size().columns) - 2
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        aligned = "  " in paragraph
        lines += ["", *(paragraph.splitlines() if aligned else textwrap.wrap(paragraph, width))]
    return "\n".join(line and f" {line}" for line in lines[1:])


def dashed(arguments: Sequence[str]) -> list[str]:
    """The words with `-` for `_` in the names of flags."""
    words: list[str] = []
    for word in arguments:
        name, equals, value = word.partition("=")
        words.append(name.replace("_", "-") + equals + value if FLAG.fullmatch(name) else word)
    return words


def value_of(flag: str, words: Sequence[str]) -> str | None:
    """The word that follows the last `flag` (or `flag=word`), or None. Raises EngramError without a value."""
    found: str | None = None
    for i, word in enumerate(words):
        if word.startswith(f"{flag}="):
            found = word.partition("=")[2]
        elif word == flag:
            missing = i + 1 == len(words) or FLAG.fullmatch(words[i + 1])
            found = "" if missing else words[i + 1]
        else:
            continue
        if not found:
            raise EngramError(f"{flag} needs a value")
    return found


def without(words: Sequence[str], flags: tuple[str, ...]) -> list[str]:
    """The words without these flags and their values."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in flags:
            skip = True
        elif not word.startswith(tuple(f"{flag}=" for flag in flags)):
            kept.append(word)
    return kept


def key_values(words: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` words as a dict; values are Python literals where they look like one, else strings."""
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (key and equals):
            raise ValueError(f"{word!r} is not of the form KEY=VALUE")
        if (name := key.replace("-", "_")) in values:
            raise ValueError(f"{name} is given twice, last as {word!r}; allowed: once")
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


def unknown_word(word: str, known: set[str], prog: str) -> str:
    """Message for a word that no flag takes, with the flags that come near."""
    name = word.partition("=")[0]
    dashes = name.startswith("-")
    said = f"unknown flag {name!r}" if dashes else f"unexpected word {word!r}"
    plain = name.lstrip("-").lower()
    meant = "--" + OTHER_NAMES.get(plain.replace("-", "_"), "").replace("_", "-")
    near = [meant] if meant in known else difflib.get_close_matches(f"--{plain}", sorted(known), n=3)
    if near and (dashes or "=" in word):
        return f"{said}; did you mean: {', '.join(near)}?"
    return f"{said}; {prog} --help names the flags"


def flags_of(cls: Any) -> set[str]:
    """Every flag of a configuration dataclass."""
    return {"--" + name.replace("_", "-") for name in settings_of(cls)}


Path = tuple[str, ...]
"""Names of fields, from a configuration down to one of its parts'."""


def settings_of(cls: Any, prefix: str = "", bare: bool = False, path: Path = ()) -> dict[str, Path]:
    """Where each setting of a configuration dataclass is, field by field, by the name that its user writes.

    Annotated parts (OmitArgPrefixes) put no prefix before all of theirs.
    """
    found: dict[str, Path] = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if is_dataclass(inner):
            omit = bare or inner is not hint
            found |= settings_of(inner, "" if omit else f"{prefix}{name}.", omit, (*path, name))
        else:
            found[prefix + name] = (*path, name)
    return found


def _registry() -> ConstructorRegistry:
    """Tells tyro how numbers and free dicts (KEY=VALUE words) are written."""
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
            instance_from_str=lambda words: (
                count(words[0]) if whole else duration(words[0], kind) if is_duration(kind) else number(words[0])
            ),
            is_instance=lambda value: type(value) is int or (not whole and type(value) is float),
            str_from_instance=lambda value: [in_words(value, kind)],
        )

    return registry


@contextlib.contextmanager
def _complaints(words: Sequence[str], known: set[str], prog: str) -> Generator[None]:
    """Turn what tyro prints before it exits with 2, a box of several lines, into a EngramError of one."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except ValueError as problem:
        raise EngramError(str(problem)) from problem
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        # A word that no flag takes is often the cause of what tyro finds missing.
        for word in words:
            if FLAG.fullmatch(name := word.partition("=")[0]) and name not in known and not _negated(name, known):
                raise EngramError(unknown_word(word, known, prog)) from None
        raise EngramError(_one_line(said.getvalue())) from None


def _negated(flag: str, known: set[str]) -> bool:
    """Whether it is the --no- form of a switch."""
    group, dot, name = flag.rpartition(".")
    name = name if dot else flag.removeprefix("--")
    return name.startswith("no-") and f"{group}{dot}{name[3:]}".removeprefix("--") in {x[2:] for x in known}


def _one_line(box: str) -> str:
    """The sentence in tyro's box, without the flag's help and the title; the box as it is if it is another one."""
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
        return box.strip() or "the words could not be understood"
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
        return f"{wrong[1]} is {wrong[2]}; allowed: {form[1] if form else 'other words'}"
    return re.sub(r"^Error parsing (?!--)\S+: ", "", text).removeprefix("Error parsing ")
