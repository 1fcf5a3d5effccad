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


class _Caught(Exception):
    """Ends a command when its parser is known."""


def commands() -> str:
    """A section for every command."""
    scripts = tomllib.loads(PYPROJECT.read_text())["project"]["scripts"]
    return "\n\n".join(map(section, sorted(scripts)))


def section(name: str) -> str:
    """One command: what it does, how it is called, its arguments."""
    module = importlib.import_module(module_of(name))
    summary = (module.__doc__ or "").split("\n\n")[0].split(": ", 1)[-1].strip()
    parts = [f"## {name}", summary[:1].upper() + summary[1:]]
    parser, text, printed = _asked_for_help(module)
    if parser is None:
        return "\n\n".join([*parts, f"```text\n{printed.strip()}\n```"])
    paragraphs = text.strip().split("\n\n")
    parts[-1:] = map(_paragraph, paragraphs if len(text) > len(parts[-1]) else parts[-1:])
    if name == SETTINGS:
        parts.append("Every other flag is a setting of the run: [configuration](configuration.md).")
    else:
        usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
        parts += [
            "```text\n" + textwrap.fill(usage, 80, subsequent_indent="    ", break_on_hyphens=False) + "\n```",
            *_tables(parser),
        ]
    return "\n\n".join(parts)


def _paragraph(text: str) -> str:
    """A paragraph of a description; one with columns stays as it is."""
    if re.search(r"\S {3,}\S", text):
        return f"```text\n{text}\n```"
    return cell(text)


def _asked_for_help(module: Any) -> tuple[Any, str, str]:
    """The parser that a command builds for `--help` and its description, or None and what it prints without one."""
    caught: list[Any] = []
    described: list[str] = []

    def catch(kind: Any, **given: Any) -> None:
        known = {key: value for key, value in given.items() if key in ("prog", "description", "default", "registry")}
        caught.append(tyro.extras.get_parser(kind, **known))
        described.append(known["description"].split("\n\n--version prints")[0])
        raise _Caught

    out, real = io.StringIO(), tyro.cli
    try:
        tyro.cli = catch  # pyright: ignore[reportAttributeAccessIssue]
        with contextlib.redirect_stdout(out), contextlib.suppress(_Caught, SystemExit):
            module.main(["--help"])
    finally:
        tyro.cli = real
    return (caught[0], described[0], "") if caught else (None, "", out.getvalue())


def _tables(parser: Any) -> list[str]:
    rows: list[str] = []
    for group in parser._action_groups:
        for action in group._group_actions:
            if action.dest == "help":
                continue
            flags = ", ".join(f"`{flag}`" for flag in action.option_strings) or f"`{action.metavar}`"
            value = f" `{action.metavar}`" if action.option_strings and action.metavar else ""
            text, default = _split_default(str(action.help))
            rows.append(f"| {flags}{value.replace('|', ' or ')} | {default} | {text} |")
    return ["\n".join(["| argument | default | |", "|---|---|---|", *rows])] if rows else []


def _split_default(text: str) -> tuple[str, str]:
    found = re.search(r"\s*\((?:default: (.*)|(required))\)\s*$", text, re.DOTALL)
    if found is None:
        return cell(text), ""
    value = found[2] or (f"`{found[1]}`" if found[1] not in ("", "''", '""') else "")
    return cell(text[: found.start()]), value


def cell(text: str) -> str:
    """A text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
