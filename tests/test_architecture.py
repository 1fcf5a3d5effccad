"""Rules of the house that a machine can check: layers (stated in pyproject.toml), packaging, sizes, safety."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STDLIB = sys.stdlib_module_names

LAYERS = ["base", "zoo", "envs", "agents", "actors", "learners", "launch"]
MATHS = ["vtrace", "returns", "optimizers", "rmsprop"]
"""Modules of learners/ that are formulas and nothing else."""

MODULES = sorted(path.relative_to(ROOT) for folder in LAYERS for path in (ROOT / folder).rglob("*.py"))
OWN_FOLDERS = [*LAYERS, "tests", "docs", "examples", "benchmarks"]


@cache
def graph() -> grimp.ImportGraph:
    """Imports of every module, including those inside functions and those for types only."""
    return grimp.build_graph("engram", include_external_packages=True, cache_dir=None)


def imports_of_the_library() -> set[str]:
    """Packages outside engram and the standard library."""
    own = [name for name in graph().modules if name.startswith("engram") and not name.startswith("engram.examples")]
    names = {name for module in own for name in graph().find_modules_directly_imported_by(module)}
    return {name.partition(".")[0] for name in names} - STDLIB - {"engram"}


def imports_of_tests() -> set[str]:
    line = re.compile(r"^(?:import (\w+)|\s*from (\w+)[\w.]* import)", re.MULTILINE)
    files = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    return {name for text in files for pair in line.findall(text) for name in pair if name} - STDLIB - {"engram"}


def test_imports_keep_to_the_layers() -> None:
    assert {name.split(".")[1] for name in graph().modules if name.startswith("engram.")} == {*LAYERS, "examples"}
    lint = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports('pyproject.toml', no_cache=True))"
    subprocess.run([sys.executable, "-c", lint], cwd=ROOT, check=True)  # in-process, it disables all loggers


def test_no_modules_import_each_other_in_a_circle() -> None:
    own = [name for name in graph().modules if name.startswith("engram")]
    TopologicalSorter({name: graph().find_modules_directly_imported_by(name) for name in own}).prepare()  # CycleError


def test_a_module_imports_engram_by_relative_names() -> None:
    """One copy under one name, whatever the checkout is called."""
    absolute = re.compile(r"^(?:from|import) engram\b|^ +(?:from engram\b.* import|import engram\b)", re.MULTILINE)
    assert absolute.search("    from engram.base import files")
    assert [path for path in MODULES if absolute.search((ROOT / path).read_text())] == []


def test_a_folder_has_few_modules() -> None:
    """Twelve; fourteen where each is one of a kind: a core, a task, a compiled loop."""
    for folder in {path.parent for path in MODULES}:
        modules = [path.name for path in MODULES if path.parent == folder and path.name != "__init__.py"]
        assert len(modules) <= (12 if folder.parts[0] == "launch" else 14), f"{folder}: {modules}"


@pytest.mark.parametrize("name", MATHS)
def test_formulas_import_torch_and_each_other_only(name: str) -> None:
    imported = graph().find_modules_directly_imported_by(f"engram.learners.{name}")
    assert imported - STDLIB <= {"torch", *(f"engram.learners.{other}" for other in MATHS)}


# -- packaging -------------------------------------------------------------------------------------------------------


def test_the_list_of_packages_is_the_folders_on_disk() -> None:
    folders = {path.parent for path in MODULES} | {Path("examples")}
    assert all((ROOT / folder / "__init__.py").is_file() for folder in folders)
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(
        {".".join(["engram", *folder.parts]) for folder in folders} | {"engram"}
    )


def test_no_module_stands_at_the_root() -> None:
    """A types.py there would shadow the standard library's."""
    assert [path.name for path in ROOT.glob("*.py")] == ["__init__.py"]


def distribution(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement)[0].lower().replace("_", "-")


MODULE_OF = {"import-linter": "importlinter", "pillow": "PIL", "pyyaml": "yaml", "tomli-w": "tomli_w"}
"""Where the name to import differs from the name to install."""


def test_what_is_imported_is_declared_explained_and_pinned() -> None:
    project = PROJECT["project"]
    to_run = {distribution(line) for line in project["dependencies"]}
    extras = {distribution(line) for lines in project["optional-dependencies"].values() for line in lines}

    assert imports_of_the_library() <= {MODULE_OF.get(name, name) for name in to_run}
    helpers = {path.stem for folder in ("tests/support", "docs/site") for path in (ROOT / folder).glob("*.py")}
    assert imports_of_tests() - helpers <= {MODULE_OF.get(name, name) for name in to_run | extras}

    page = (ROOT / "docs" / "reference" / "dependencies.md").read_text()
    assert set(re.findall(r"^\| `([\w-]+)`", page, re.MULTILINE)) == to_run | extras
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pinned)
    assert to_run | extras <= {distribution(line) for line in pinned}


def test_there_is_one_copy_of_engram() -> None:
    """A package folder under tests/ would make pytest climb to the root and import it by the checkout's name."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []
    here = [
        name for name, module in sys.modules.items() if getattr(module, "__file__", None) == str(ROOT / "__init__.py")
    ]
    assert here in ([], ["engram"])


# -- sizes -----------------------------------------------------------------------------------------------------------


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions of a module and methods of its classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.stmt):
            yield from functions(node)


def test_a_file_is_short_enough_to_read() -> None:
    wrong: list[str] = []
    for module in MODULES:
        if (lines := (ROOT / module).read_text().count("\n")) > 350:
            wrong.append(f"{module} has {lines} lines")
        for node in functions(ast.parse((ROOT / module).read_text())):
            if (node.end_lineno or 0) - node.lineno >= 60:
                wrong.append(f"{module}:{node.lineno} {node.name}")
    assert wrong == []


# -- safety ----------------------------------------------------------------------------------------------------------


def own_files(*suffixes: str) -> list[Path]:
    files = [path for folder in OWN_FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    return files + [path for path in ROOT.iterdir() if path.suffix in suffixes]


def unsafe_loads(text: str) -> list[int]:
    """Lines that call torch.load without weights_only=True."""
    lines: list[int] = []  # most files have no such text and need not be parsed
    if not re.search(r"\btorch\b\W*load\b", text):
        return lines
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"):
            continue
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if given.get("weights_only") != "True":
            lines.append(node.lineno)
    return lines


def test_nothing_loads_code_from_a_file() -> None:
    load = "torch" + ".load"  # in two parts: a search for unsafe loads by line shall not stop here
    assert unsafe_loads(f"import torch\n{load}(f)\n{load}(\n f, weights_only=False)\n") == [2, 3]
    assert {path: lines for path in own_files(".py") if (lines := unsafe_loads(path.read_text()))} == {}


def test_nothing_names_a_place_on_one_machine() -> None:
    place = re.compile(r"(?<![\w.])/(?:work|root|farm|home)/")
    assert place.search("see /" + "work/main")
    found = [
        path for path in own_files(".py", ".md", ".toml", ".txt", ".json", ".sh") if place.search(path.read_text())
    ]
    assert found == []
