"""Three sets of tests, chosen by the place of a file.

    pytest                   unit tests and contracts at small sizes
    pytest -m integration    training runs, commands, Ray
    pytest -m nightly        faults, fuzzing, pages, notebooks, browsers, compilers

Each runs in several processes (`-n 0` for one, as a debugger needs it). `--minutes N` starts no test after N minutes
and skips the rest; the order of the files then depends on the date, so that successive days reach all of them.

A file or folder named on the command line runs whole, whatever its set. A single test of another set than its file
carries a mark: `@pytest.mark.integration`.
"""

import os
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # processes with as many threads as there are cores wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

SETS = {
    "integration": "training runs, commands and Ray",
    "nightly": "faults, fuzzing, pages, notebooks, browsers and compilers",
}
LONG = {
    "cluster": "makes hosts and a Ray cluster of them, minutes",
    "slow": "takes minutes",
}
SET_OF = {
    "actors/remote/test_pool.py": "integration",
    "agents/test_compiled.py": "nightly",
    "agents/test_fast_routes.py": "integration",
    "cluster": "nightly",
    "contracts/test_reference_mutations.py": "integration",
    "docker": "nightly",
    "docs/test_blocks.py": "nightly",
    "docs/test_generated.py": "nightly",
    "envs/foreign/test_workers.py": "integration",
    "envs/pycolab_games": "integration",
    "examples": "nightly",
    "faults": "nightly",
    "launch": "integration",
    "launch/metrics": "",
    "launch/config": "",
    "launch/runs": "",
    "launch/cluster/test_ray_session.py": "nightly",
    "launch/cluster/test_slurm.py": "nightly",
    "launch/figures/test_recorded.py": "nightly",
    "launch/insight/test_page.py": "nightly",
    "launch/test_fuzz.py": "nightly",
    "test_wheel.py": "nightly",
    "zoo": "integration",
}
"""The set of a file or folder below tests/: the longest path that fits decides; without one a file runs by default."""
SLOW_TO_COMPILE = {"conv-lstm", "mnm-g", "mnm-p", "rmc"}
"""Cores whose compiled routes take a minute to compile: default tests with such a parameter are integration tests."""
FIRST = {
    "actors/remote/test_pool.py",
    "agents/test_mnm.py",
    "launch/figures/test_command.py",
    "launch/train/test_learners.py",
    "learners/remote/test_members.py",
}
"""Files of the integration tests that take a minute or more: they begin first, so that no process waits for one."""
CORES = "core_names|" + "|".join(f'"{name}"' for name in sorted(SLOW_TO_COMPILE))
"""A regular expression: files that may have such tests."""
TESTS = Path(__file__).parent
assert [place for place in (*SET_OF, *FIRST) if not (TESTS / place).exists()] == [], "moved, and so in no set"
UNTIL = pytest.StashKey[tuple[str, float]]()
"""The date and the time after which no test starts."""
DEFAULT = f"not ({' or '.join(SETS)})"


def set_of(path: Path) -> str:
    """The set that a file belongs to, empty for the default one."""
    inside = path.relative_to(TESTS)
    places = [inside.as_posix(), *(parent.as_posix() for parent in inside.parents)]
    return next((SET_OF[place] for place in places if place in SET_OF), "")


def compiles_long(item: pytest.Item) -> bool:
    """Whether a parameter is a core that is slow to compile, without the mark of a test of its plain statement."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = [value[0] if isinstance(value, tuple) and value else value for value in values]
    slow = any(isinstance(name, str) and name in SLOW_TO_COMPILE for name in names)
    return slow and item.get_closest_marker("statement") is None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, help="start no test after so many minutes; skip the rest")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Where no path is given: the default set unless another is named, and several processes for a set."""
    option = config.option
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    option.markexpr = option.markexpr or DEFAULT
    alone = hasattr(config, "workerinput") or option.usepdb or option.collectonly or option.capture == "no"
    chosen = option.markexpr == DEFAULT or set(option.markexpr.split(" or ")) <= SETS.keys()
    if alone or not chosen or getattr(option, "numprocesses", 0) is not None:
        return
    cores = min(os.cpu_count() or 1, 4)
    option.numprocesses = cores if option.markexpr == DEFAULT else 2 * cores  # those sets wait for half of their time
    option.dist, option.loadscopereorder = "loadfile", False


def pytest_configure(config: pytest.Config) -> None:
    deadline = time.time() + 60 * config.option.minutes if config.option.minutes else float("inf")
    config.stash[UNTIL] = getattr(config, "workerinput", {}).get("until", (time.strftime("%F"), deadline))
    for name, what in SETS.items():
        config.addinivalue_line("markers", f"{name}: {what}; chosen with -m {name}")
    config.addinivalue_line("markers", "statement: uses no compiled route of a core")
    for name, why in LONG.items():
        config.addinivalue_line("markers", f"{name}: {why}; skipped unless chosen with -m {name}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Every process has the date and the deadline of the first."""
    node.workerinput["until"] = node.config.stash[UNTIL]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file whose tests would all be deselected."""
    chosen = config.option.markexpr
    if collection_path.suffix != ".py" or (chosen != DEFAULT and chosen not in SETS):
        return None
    name = "" if chosen == DEFAULT else chosen
    marks = f"mark.{name}|{CORES}" if name == "integration" else f"mark.{name}"
    in_set = set_of(collection_path) == name or (name and re.search(marks, collection_path.read_text()))
    return None if in_set or collection_path.name == "conftest.py" else True


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("nightly"):  # of one parameter, say: it counts more than a mark of the function
        item.own_markers = [mark for mark in item.own_markers if mark.name != "integration"]
    marked = any(item.get_closest_marker(name) for name in SETS)
    if not marked and (name := set_of(item.path) or ("integration" if compiles_long(item) else "")):
        item.add_marker(name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.option.markexpr
    if chosen == "integration":
        items.sort(key=lambda item: item.path.relative_to(TESTS).as_posix() not in FIRST)
    if config.option.minutes:
        date, _ = config.stash[UNTIL]
        items.sort(key=lambda item: zlib.crc32(f"{date} {item.path}".encode()))
    for item in items:
        for name, why in LONG.items():
            if item.get_closest_marker(name) and name not in chosen:
                item.add_marker(pytest.mark.skip(reason=f"{why}; run it with: pytest -m {name}"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > item.config.stash[UNTIL][1]:
        pytest.skip("--minutes are over")


@pytest.fixture(scope="module")
def shared_ray() -> Iterator[None]:
    """One Ray for all runs of a file, instead of one for each: room for three actors and three learners.

    Its workers find the modules of tests/support.
    """
    from engram.launch.cluster import ray_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS / "support"))
        ray_session.start_ray(3, num_learners=3)
        stop = ray_session.stop_ray
        patch.setattr(ray_session, "stop_ray", lambda: True)
        yield
    stop()
