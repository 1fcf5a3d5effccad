"""The reference of the configuration, from the dataclasses and the presets."""

import ast
import inspect
import itertools
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from command_pages import cell

from engram.base.units import Minutes, Seconds, in_words
from engram.launch.config.run_config import RunConfig
from engram.launch.config.run_flags import OTHERS, PRESETS

PREFIXED = ("pbt",)
"""Tables whose flags keep the table's name."""


def settings() -> str:
    """Tables of all settings: the run's own, then one for each table of config.toml."""
    return "\n\n".join(_table(RunConfig, (), "The run"))


def _table(kind: type[Any], path: tuple[str, ...], title: str) -> list[str]:
    texts, hints = field_docstrings(kind), get_type_hints(kind)
    rows, inner = [], []
    for each in fields(kind):
        hint = hints[each.name]
        if is_dataclass(hint):
            name = ".".join((*path, each.name))
            inner += _table(hint, (*path, each.name), f"`[{name}]`: {first_sentence(texts[each.name])}")  # pyright: ignore
            continue
        default = each.default if each.default is not MISSING else each.default_factory()  # pyright: ignore
        prefix = "".join(f"{part}." for part in path if part in PREFIXED)
        flag = f"--{prefix}{each.name}".replace("_", "-")
        shown = f"`{in_words(default, hint)}`" if default not in ({}, (), None, "") else ""
        rows.append(f"| `{flag}` | {_type(hint)} | {shown} | {cell(texts[each.name])} |")
    head = [f"## {title}", "\n".join(["| flag | values | default | |", "|---|---|---|---|", *rows])]
    return [*(head if rows else []), *inner]


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, without its full stop."""
    return " ".join(text.split()).split(". ")[0].rstrip(".").lower()


def field_docstrings(kind: type[Any]) -> dict[str, str]:
    """The text below each field of a dataclass."""
    found: dict[str, str] = {}
    for base in reversed([each for each in kind.__mro__ if is_dataclass(each)]):
        body = ast.parse(inspect.cleandoc(inspect.getsource(base))).body[0].body  # pyright: ignore
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[ast.unparse(field.target)] = ast.literal_eval(text.value)
    return found


def _type(hint: Any) -> str:
    names = {
        int: "number",
        float: "number",
        Seconds: "duration",
        Minutes: "duration",
        str: "text",
        bool: "on or off (`--no-…`)",
        type(None): "",
    }
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin is dict:
        return "`KEY=VALUE …`"
    if origin in (tuple, list):
        return f"{_type(inner[0])} …"
    if inner:
        return " or ".join(part for part in map(_type, inner) if part)
    return names.get(hint, "text")


def presets() -> str:
    """A table of what presets set in addition to the defaults."""
    rows = {name: _rows(name) for name in PRESETS}
    rows["paper"].append("| `paper` | all others | any | " + cell(_flat(OTHERS)) + " |")
    head = ["| preset | environment | core | sets |", "|---|---|---|---|"]
    return "\n".join([*head, *itertools.chain(*rows.values())])


def _rows(name: str) -> list[str]:
    """Those of the environments, then those of cores in them."""
    environments, cores = PRESETS[name]
    of_environments = [(environment, "any", values) for environment, values in environments.items()]
    of_cores = [(environment, f"`{core}`", values) for (environment, core), values in cores.items()]
    return [
        f"| `{name}` | `{environment}` | {core} | {cell(_flat(values))} |"
        for environment, core, values in of_environments + of_cores
    ]


def _flat(values: dict[str, Any], path: str = "") -> str:
    parts = [
        _flat(value, f"{path}{key}.") if isinstance(value, dict) else f"`{path}{key} = {value}`"
        for key, value in values.items()
    ]
    return ", ".join(parts)
