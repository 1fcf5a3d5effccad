"""The reference of commands, from the parsers themselves."""

import contextlib
import importlib
import io
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import tyro

from engram.launch.entry import module_of

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
SETTINGS = "rl-train"
"""The command whose flags are the settings of a run, which the page of the configuration lists."""


ORDER = (
    *("rl-train", "rl-eval", "rl-look", "rl-play", "rl-doctor", "rl-bench", "rl-population"),
    *("rl-compare", "rl-reproduce", "rl-probe", "rl-check-core", "rl-export"),
)
"""Commands in the order of a first use."""


class _Caught(Exception):
    """Ends a command when its parser is known."""


def commands() -> str:
    """A section for every command, in the order of a first use."""
    scripts = tomllib.loads(PYPROJECT.read_text())["project"]["scripts"]
    return "\n\n".join(map(section, sorted(scripts, key=lambda name: (ORDER.index(name), name))))


def section(name: str) -> str:
    """One command, always in one form: what it does, how it is called, its arguments."""
    module = importlib.import_module(module_of(name))
    summary = " ".join((module.__doc__ or "").split("\n\n")[0].split(": ", 1)[-1].split())
    parser, text, printed = _asked_for_help(module)
    if parser is None:
        usage, text, rows = _printed(printed)
    else:
        usage, rows = "", _rows(parser)
    texts: list[str] = []
    for part in text.strip().split("\n\n"):
        if re.search(rf"^ *{name} .*\S {{3,}}\S", part, re.MULTILINE):
            usage = textwrap.dedent(part)
        else:
            texts.append(cell(part))
    if name == SETTINGS:
        usage, rows = f"{name} --env ENV [flags]\n{name} --resume RUN [flags]", []
        texts.append("Every other flag is a setting of the run: [configuration](configuration.md).")
    elif not usage:
        usage = f"{name} {_positional(parser)}[flags]"
    table = ["\n".join(["| argument | default | |", "|---|---|---|", *rows])] if rows else []
    first = [] if parser else [summary[:1].upper() + summary[1:]]
    what, *more = [*first, *filter(None, texts)]
    return "\n\n".join([f"## {name}", what, f"```text\n{usage}\n```", *more, *table])


def _positional(parser: Any) -> str:
    """Arguments without a flag, as a usage line writes them."""
    actions = (action for group in parser._action_groups for action in group._group_actions)
    names = [_name(action) for action in actions if not action.option_strings]
    return "".join(f"{name} " for name in names)


def _name(action: Any) -> str:
    """An argument without a flag by its metavar, or by its own name where that is a type."""
    return str(action.dest).upper() if "STR" in str(action.metavar) else str(action.metavar)


def _printed(text: str) -> tuple[str, str, list[str]]:
    """Usage, description and rows of arguments of a help text that is written by hand."""
    usage, _, rest = text.strip().removeprefix("usage: ").partition("\n\n")
    option = re.compile(r"^  (--\S+(?: [A-Z]+)?)\s+(.+(?:\n {4,}.+)*)$", re.MULTILINE)
    rows: list[str] = []
    for flag, meaning in option.findall(rest):
        what, default = re.fullmatch(r"(.*?)(?: \((.*)\))?", " ".join(meaning.split())).groups()  # pyright: ignore
        rows.append(f"| `{flag}` | {cell(default or '')} | {cell(what)} |")
    return "\n".join(line.strip() for line in usage.splitlines()), option.sub("", rest), rows


def _asked_for_help(module: Any) -> tuple[Any, str, str]:
    """The parser that a command builds for `--help` and its description, or None and what it prints without one."""
    caught: list[Any] = []
    described: list[str] = []

    def catch(kind: Any, **given: Any) -> None:
        known = {key: value for key, value in given.items() if key in ("prog", "description", "default", "registry")}
        caught.append(tyro.extras.get_parser(kind, **known))
        described.append(known["description"].split("--version prints")[0])
        raise _Caught

    out, real = io.StringIO(), tyro.cli
    try:
        tyro.cli = catch  # pyright: ignore[reportAttributeAccessIssue]
        with contextlib.redirect_stdout(out), contextlib.suppress(_Caught, SystemExit):
            module.main(["--help"])
    finally:
        tyro.cli = real
    return (caught[0], described[0], "") if caught else (None, "", out.getvalue())


def _rows(parser: Any) -> list[str]:
    rows: list[str] = []
    for group in parser._action_groups:
        for action in group._group_actions:
            if action.dest == "help":
                continue
            flags = ", ".join(f"`{flag}`" for flag in action.option_strings) or f"`{_name(action)}`"
            value = f" `{action.metavar}`" if action.option_strings and action.metavar else ""
            text, default = _split_default(str(action.help))
            rows.append(f"| {flags}{value.replace('|', ' or ')} | {default} | {text} |")
    return rows


def _split_default(text: str) -> tuple[str, str]:
    found = re.search(r"\s*\((?:default: (.*)|(required))\)\s*$", text, re.DOTALL)
    if found is None:
        return cell(text), ""
    value = found[2] or (f"`{found[1]}`" if found[1] not in ("", "''", '""') else "")
    return cell(text[: found.start()]), value


def cell(text: str) -> str:
    """A text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
