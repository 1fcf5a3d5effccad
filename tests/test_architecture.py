"""The rules of the house that a machine can check: floors, packaging, sizes, safety."""

import ast
import re
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STDLIB = sys.stdlib_module_names

BELOW = {
    "base": set[str](),
    "zoo": {"base"},
    "envs": {"base"},
    "agents": {"base"},
    "actors": {"base", "envs", "agents"},
    "learners": {"base", "envs", "agents", "actors"},
    "launch": {"base", "zoo", "envs", "agents", "actors", "learners"},
}
"""The floors that each folder may import from, besides its own."""

PACKAGES = {
    "zoo": {"safetensors", "torch"},
    "base": {"numpy", "numba", "psutil"},
    "envs": {"numpy", "numba", "gymnasium", "pycolab", "PIL"},
    "agents": {"torch", "numpy", "numba"},
    "actors": {"torch", "numpy", "gymnasium"},
    "learners": {"torch", "numpy", "scipy"},
    "launch": {
        "torch",
        "numpy",
        "gymnasium",
        "ray",
        "tyro",
        "rich",
        "tensorboard",
        "tomli_w",
        "matplotlib",
        "fsspec",
        "PIL",
        "scipy",
    },
}
"""Packages that each folder may import from outside engram and the standard library."""

EXCEPTIONS = {
    **{f"actors/remote/{name}.py": {"ray"} for name in ("heartbeat", "pool", "slot", "wire")},
    **{f"learners/remote/{name}.py": {"ray"} for name in ("answers", "gpus", "members", "store", "team", "worker")},
    "agents/bf16.py": {"llvmlite"},
    "agents/cores/fast/blas.py": {"llvmlite", "threadpoolctl"},
}

MATHS = ["vtrace", "returns", "optimizers"]
"""Modules of learners/ that are formulas and nothing else."""

MODULES = sorted(path.relative_to(ROOT) for house in BELOW for path in (ROOT / house).rglob("*.py"))
OWN_FOLDERS = [*BELOW, "tests", "docs", "examples", "benchmarks"]


@cache
def nodes(module: Path) -> list[ast.AST]:
    """All nodes of a module's syntax tree."""
    return list(ast.walk(ast.parse((ROOT / module).read_text())))


@cache
def imports(module: Path) -> list[str]:
    """Dotted names of everything that a module imports; relative ones as engram.<folder>..."""
    package, dotted = ["engram", *module.parent.parts], list[str]()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            dotted += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            dotted.append(node.module or "")
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            dotted += [".".join([*base, name]) for name in names]
    return dotted


def test_the_modules_are_found() -> None:
    assert {path.parts[0] for path in MODULES} == set(BELOW)
    assert list(imports(Path("agents/cores/registry.py")))[-1] == "engram.agents.cores.learned_start"


def test_a_module_imports_from_its_own_floor_or_below() -> None:
    wrong: list[str] = []
    for module in MODULES:
        for name in imports(module):
            if name.split(".")[0] == "engram":
                folder = name.split(".")[1] if "." in name else "engram itself"
                if folder not in {module.parts[0], *BELOW[module.parts[0]]}:
                    wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and those for types alone count as well."""
    dotted = {".".join(["engram", *path.with_suffix("").parts]).removesuffix(".__init__"): path for path in MODULES}
    graph: dict[str, set[str]] = {name: set() for name in dotted}
    for name, path in dotted.items():
        package = ["engram", *path.parent.parts]
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = [*package[: len(package) - node.level + 1], *filter(None, [node.module])]
                inner = {".".join([*base, alias.name]) for alias in node.names}
                graph[name] |= {each if each in dotted else ".".join(base) for each in inner} & dotted.keys()
    TopologicalSorter(graph).prepare()  # CycleError names the modules


def test_a_module_imports_only_the_packages_of_its_floor() -> None:
    wrong: list[str] = []
    for module in MODULES:
        allowed = {"engram", *STDLIB, *PACKAGES[module.parts[0]], *EXCEPTIONS.get(module.as_posix(), set())}
        wrong += [f"{module} imports {name}" for name in imports(module) if name.split(".")[0] not in allowed]
    assert wrong == []


def test_a_module_imports_engram_by_relative_names() -> None:
    """One copy under one name, whatever the checkout is called."""
    wrong: list[str] = []
    for module in MODULES:
        for node in nodes(module):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            wrong += [f"{module}:{node.lineno}" for name in names if name.split(".")[0] == "engram"]
    assert wrong == []


SHARED = {"run", "metrics", "cluster", "trackers"}
"""Folders of launch/ that the others may use."""
COMPOSERS = {
    **{
        f"launch/api/{name}.py": {"train", "population", "evaluate", "look"}
        for name in ("training", "run", "evaluation")
    },
    "launch/train/command.py": {"api", "trials"},
    "launch/trials/command.py": {"api", "train"},
    "launch/figures/tasks.py": {"compare"},
    "launch/play/agent.py": {"api"},
    "launch/bench/training_speed.py": {"api"},
    "launch/train/trainer.py": {"population", "look"},
}
"""Modules that put a product together from another folder's parts: the functions for Python, and commands over them."""


def test_the_products_of_launch_do_not_import_each_other() -> None:
    wrong: list[str] = []
    for module in (path for path in MODULES if path.parts[0] == "launch"):
        allowed = {module.parts[1], *SHARED, *COMPOSERS.get(module.as_posix(), set())}
        for name in imports(module):
            parts = name.split(".")
            if parts[:2] == ["engram", "launch"] and len(parts) > 2 and parts[2] not in allowed:
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_a_folder_holds_few_modules() -> None:
    """Twelve; fourteen where each is one of a kind: a core, a task, a compiled loop."""
    for folder in {path.parent for path in MODULES}:
        modules = [path.name for path in MODULES if path.parent == folder and path.name != "__init__.py"]
        assert len(modules) <= (12 if folder.parts[0] == "launch" else 14), f"{folder}: {modules}"


@pytest.mark.parametrize("name", MATHS)
def test_formulas_import_torch_and_each_other_only(name: str) -> None:
    own = {f"engram.learners.{other}" for other in MATHS}
    for imported in imports(Path("learners", f"{name}.py")):
        assert imported == "torch" or imported in own or imported.split(".")[0] in STDLIB, imported


# -- packaging -------------------------------------------------------------------------------------------------------


def test_the_list_of_packages_is_the_folders_on_disk() -> None:
    folders = {path.parent for path in MODULES} | {Path("examples")}
    assert all((ROOT / folder / "__init__.py").is_file() for folder in folders)
    named = {".".join(["engram", *folder.parts]): folder.as_posix() for folder in folders} | {"engram": "."}
    setuptools = PROJECT["tool"]["setuptools"]
    assert sorted(setuptools["packages"]) == sorted(named)
    assert setuptools["package-dir"] == named


def test_no_module_stands_at_the_root() -> None:
    """A types.py there would shadow the standard library's."""
    assert [path.name for path in ROOT.glob("*.py")] == ["__init__.py"]


def distribution(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement)[0].lower().replace("_", "-")


MODULE_OF = {"pillow": "PIL", "pyyaml": "yaml", "tomli-w": "tomli_w"}
"""Where the name to import differs from the name to install."""


def test_what_is_imported_is_declared_explained_and_pinned() -> None:
    project = PROJECT["project"]
    to_run = {distribution(line) for line in project["dependencies"]}
    extras = {distribution(line) for lines in project["optional-dependencies"].values() for line in lines}

    used = {name.split(".")[0] for module in MODULES for name in imports(module)}
    assert used - STDLIB - {"engram"} <= {MODULE_OF.get(name, name) for name in to_run}
    tests = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py")]
    helpers = {
        path.stem for path in (*(ROOT / "tests" / "support").rglob("*.py"), *(ROOT / "docs" / "site").glob("*.py"))
    }
    used = {name.split(".")[0] for module in tests for name in imports(module)}
    assert used - STDLIB - {"engram"} - helpers <= {MODULE_OF.get(name, name) for name in to_run | extras}

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


def test_a_file_is_short_enough_to_read() -> None:
    wrong: list[str] = []
    for module in MODULES:
        if (lines := (ROOT / module).read_text().count("\n")) > 350:
            wrong.append(f"{module} has {lines} lines")
        for node in nodes(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
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
