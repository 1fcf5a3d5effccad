"""The reference of commands, from the parsers themselves."""

import contextlib
import importlib
import io
import re
import tomllib
from pathlib import Path
from typing import Any

import tyro

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
SETTINGS = "rl-train"
"""The command whose flags are the settings of a run, which the page of the configuration lists."""


class _Caught(Exception):
    """Ends a command when its parser is known."""


def commands() -> str:
    """A section for every command."""
    scripts = tomllib.loads(PYPROJECT.read_text())["project"]["scripts"]
    return "\n\n".join(section(name, entry) for name, entry in sorted(scripts.items()))


def section(name: str, entry: str) -> str:
    """One command: what it does, how it is called, its arguments."""
    module = importlib.import_module(entry.partition(":")[0])
    parts = [f"## {name}", (module.__doc__ or "").split(": ", 1)[-1].strip().capitalize()]
    parser, printed = _asked_for_help(module)
    if parser is None:
        return "\n\n".join([*parts, f"```text\n{printed.strip()}\n```"])
    text = parser.description.split("\n\n--version prints")[0].strip()
    if len(text) > len(parts[-1]) + 20:
        parts.append(f"```text\n{text}\n```")
    if name == SETTINGS:
        parts.append("Every other flag is a setting of the run: [configuration](configuration.md).")
    else:
        parts += ["```text\n" + " ".join(parser.format_usage().split()) + "\n```", *_tables(parser)]
    return "\n\n".join(parts)


def _asked_for_help(module: Any) -> tuple[Any, str]:
    """The parser that a command builds for `--help`, or None and what it prints if it has none of tyro's."""
    caught: list[Any] = []

    def catch(kind: Any, **given: Any) -> None:
        known = {key: value for key, value in given.items() if key in ("prog", "description", "default", "registry")}
        caught.append(tyro.extras.get_parser(kind, **known))
        raise _Caught

    out, real = io.StringIO(), tyro.cli
    try:
        tyro.cli = catch  # pyright: ignore[reportAttributeAccessIssue]
        with contextlib.redirect_stdout(out), contextlib.suppress(_Caught, SystemExit):
            module.main(["--help"])
    finally:
        tyro.cli = real
    return (caught[0] if caught else None), out.getvalue()


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
