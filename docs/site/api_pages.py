"""Pages of the API: the names that `engram` itself has, and one page for each folder meant to be imported."""

import ast
import re
from pathlib import Path

import engram

ROOT = Path(__file__).parents[2]
FOLDERS = ("envs", "agents", "actors", "learners", "zoo")
"""Packages that are meant to be imported; launch/ is reached by commands and by the names of `engram`."""
INSIDE = "agents.cores.fast"
"""Compiled routes, which only the cores call."""
SEARCHED = ("agents.cores", "learners", "learners.algorithms")
"""Pages of packages that are that are searched, as the page `engram` is; the others would hide the guides' entries."""
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
TOP = "engram"


def folders() -> dict[str, list[Path]]:
    """The modules of every package below FOLDERS, by its dotted name without `engram`."""
    found: dict[str, list[Path]] = {}
    for top in FOLDERS:
        for init in sorted((ROOT / top).rglob("__init__.py")):
            modules = sorted(path for path in init.parent.glob("*.py") if names(path))
            name = ".".join(init.parent.relative_to(ROOT).parts)
            if modules and not name.startswith(INSIDE):
                found[name] = modules
    return found


def names(module: Path) -> list[str]:
    """Public functions and classes that a module defines."""
    return [
        node.name
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]


def dotted(module: Path) -> str:
    """A module's name as it is imported."""
    parts = module.relative_to(ROOT).with_suffix("").parts
    return ".".join(("engram", *(part for part in parts if part != "__init__")))


def titles() -> list[tuple[str, str]]:
    """Title and page of every folder, `engram` first."""
    return [(name, f"reference/api/{name}.md") for name in (TOP, *folders())]


def pages() -> dict[str, str]:
    """The page `engram`, and every folder's."""
    every = {f"reference/api/{name}.md": _page(name, modules) for name, modules in folders().items()}
    return {f"reference/api/{TOP}.md": _top()} | every


def _top() -> str:
    parts = [f"# {TOP}", _docstring(ROOT / "__init__.py")]
    for name in engram.__all__:
        options = f"{{heading: engram.{name}, toc_label: engram.{name}, heading_level: 2}}"
        parts.append(f"::: {home(name)}\n    options: {options}")
    return "\n\n".join(parts)


def home(name: str) -> str:
    """Where a public name of `engram` is defined."""
    return f"{getattr(engram, name).__module__}.{name}"


def _page(name: str, modules: list[Path]) -> str:
    parts = [f"# engram.{name}", _docstring(ROOT.joinpath(*name.split(".")) / "__init__.py")]
    for module in modules:
        parts += [f"## {dotted(module)}", _docstring(module) if module.name != "__init__.py" else ""]
        parts += [f"::: {dotted(module)}.{each}" for each in names(module)]
    return ("" if name in SEARCHED else UNSEARCHED) + "\n\n".join(parts)


def _docstring(module: Path) -> str:
    """A module's docstring; a paragraph that is drawn, or has columns, stays as it is."""
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    drawn = re.compile(r"\S {3,}\S|^ ", re.MULTILINE)
    parts = [f"```text\n{part}\n```" if drawn.search(part) else part for part in text.split("\n\n")]
    return "\n\n".join(parts)


def overview() -> str:
    """A table of the pages."""
    rows = [f"| [`{TOP}`](api/{TOP}.md) | {', '.join(f'`{name}`' for name in engram.__all__)} |"]
    rows += [f"| [`engram.{name}`](api/{name}.md) | {_first_line(name)} |" for name in folders()]
    return "\n".join(["| package | |", "|---|---|", *rows])


def _first_line(name: str) -> str:
    return _docstring(ROOT.joinpath(*name.split(".")) / "__init__.py").split("\n\n")[0].replace("\n", " ")


def missing(site: Path) -> list[str]:
    """Public names without a heading of their own in the built site."""
    top = (site / "reference" / "api" / f"{TOP}.html").read_text()
    found = [f"engram.{name}" for name in engram.__all__ if f'id="{home(name)}"' not in top]
    for name, modules in folders().items():
        html = (site / "reference" / "api" / f"{name}.html").read_text()
        anchors = set(re.findall(r'id="(engram[\w.]+)"', html))
        found += [
            full for module in modules for each in names(module) if (full := f"{dotted(module)}.{each}") not in anchors
        ]
    return found
