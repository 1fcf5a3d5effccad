"""Compiled functions: kept on disk until a source changes, compiled without a cache where nothing can be written."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import engram
from engram.base.compiled import compiled, kernel

HEAD = "from engram.base.compiled import kernel\n"


def run(program: Path, **environment: str) -> str:
    command = [sys.executable, str(program)]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA")}
    done = subprocess.run(command, env=clean | environment, cwd=program.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def write_game(folder: Path) -> Path:
    """A program that prints a result, and how many functions it found on disk; it uses two other modules."""
    program = folder / "toy.py"
    program.write_text(
        f"from middle import rule\n{HEAD}\n@kernel\ndef play(x):\n    return rule(x) + 1\n\n\n"
        "print(play(1), sum(play.stats.cache_hits.values()))\n"
    )
    (folder / "middle.py").write_text(f"from far import FACTOR\n{HEAD}\n@kernel\ndef rule(x):\n    return FACTOR * x\n")
    return program


@pytest.mark.integration
def test_a_change_of_any_source_renews_what_is_on_disk(tmp_path):
    """Also of one that is imported by an imported module only, of equal size and time."""
    program, far = write_game(tmp_path), tmp_path / "far.py"

    def played(factor: int) -> str:
        far.write_text(f"FACTOR = {factor}\n")
        os.utime(far, (1, 1))
        return run(program, NUMBA_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1")

    assert [played(10), played(10), played(20), played(20)] == ["11 0", "11 1", "21 0", "21 1"]


@pytest.mark.integration
def test_of_processes_that_start_together_one_compiles(tmp_path):
    """The others load its result."""
    program, count = write_game(tmp_path), 3
    (tmp_path / "far.py").write_text("FACTOR = 10\n")
    together = "import pathlib, os, time\npathlib.Path(f'{os.getpid()}.ready').touch()\n"
    together += f"while len(list(pathlib.Path('.').glob('*.ready'))) < {count}:\n    time.sleep(0.001)\nprint(play(1)"
    program.write_text(program.read_text().replace("print(play(1)", together))
    with ThreadPoolExecutor(count) as threads:
        played = threads.map(lambda _: run(program, NUMBA_CACHE_DIR=str(tmp_path / "cache")), range(count))
    assert sorted(played) == ["11 0", "11 1", "11 1"]


@pytest.mark.integration
def test_code_for_types_that_are_no_more_is_compiled_anew_and_kept(tmp_path):
    """An upgrade leaves the compiled code of the version before where it was."""
    program = tmp_path / "toy.py"
    program.write_text(
        f"import shapes\n{HEAD}\n@kernel\ndef play(pair):\n    return pair.x + 1\n\n\n"
        "print(play(shapes.make()), sum(play.stats.cache_hits.values()))\n"
    )

    def played(name: str) -> str:
        (tmp_path / "shapes.py").write_text(
            f"from typing import NamedTuple\n\n\nclass {name}(NamedTuple):\n    x: int\n\n\n"
            f"def make():\n    return {name}(1)\n"
        )
        return run(program, NUMBA_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1")

    assert [played("Pair"), played("Pair"), played("Twin"), played("Twin")] == ["2 0", "2 1", "2 0", "2 1"]


@pytest.mark.integration
@pytest.mark.parametrize("module", ["t_maze.rules", "sequence_recall", "cued_catch", "boxworld.rules"])
def test_environments_depend_on_the_modules_that_they_share(module):
    """A change of the random numbers is a change of every environment."""
    name = f"engram.envs.{module}"
    program = f"from engram.base.sources import sources\nimport {name}\nprint(*sources({name!r}))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    files = {Path(file).name for file in done.stdout.split()}
    assert {"randomness.py", "arrays.py", "compiled.py"} <= files
    assert ("parts.py" in files) == (module != "boxworld.rules")
    assert ("drawing.py" in files) == (not module.endswith(".rules")), "one file: rules and images"


@pytest.mark.integration
def test_a_directory_that_can_no_longer_be_written_costs_the_cache_only(tmp_path):
    program = write_game(tmp_path)
    (tmp_path / "far.py").write_text("FACTOR = 10\n")
    text = program.read_text().replace("print(", "import shutil\nshutil.rmtree('cache')\nopen('cache', 'w')\nprint(")
    program.write_text(text)
    assert run(program, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == "11 0"


@pytest.mark.integration
def test_functions_run_as_python_where_compiling_is_switched_off(tmp_path):
    program = tmp_path / "toy.py"
    program.write_text(
        "import warnings\nwarnings.simplefilter('error')\nimport numpy as np\n"
        "from engram.base import compiled\nfrom engram.envs.randomness import integer, streams\n"
        "from engram.envs.registration import make_batch\nfrom engram.agents.cores.registry import make_core\n"
        "import torch\n\n\n@compiled.compiled('reassoc', inline=True)\ndef double(x):\n    return 2 * x\n\n\n"
        "core = make_core('rmc', 4, num_slots=1, num_heads=1, head_size=4)\n"
        "print(type(integer).__name__, double(2), integer(streams(5, range(1)), 0, 1000))\n"
        "print(core(torch.ones(1, 4), core.initial_state(1))[0].shape)\n"
        "for name in ('t-maze', 'maze', 'cued-catch'):\n"
        "    env = make_batch(name, 2)\n    env.reset(seed=1)\n"
        "    for _ in range(3):\n        env.step(np.zeros(2, np.int64))\n"
    )
    first, second = run(program, NUMBA_DISABLE_JIT="1").splitlines()
    from engram.envs.randomness import integer, streams

    assert first == f"function 4 {integer(streams(5, range(1)), 0, 1000)}"
    assert second == "torch.Size([1, 4])"


def test_functions_without_a_file_are_compiled_but_not_kept():
    names: dict = {"__name__": "nowhere"}
    exec(compile("def double(x):\n    return 2 * x\n", "<nowhere>", "exec"), names)
    assert kernel(names["double"])(4) == 8
    assert compiled()(names["double"])(4) == 8


def test_no_other_module_calls_numba_itself():
    here = Path(engram.__file__).parent
    folders = ("base", "envs", "agents", "actors", "learners", "launch")
    files = [path for folder in folders for path in (here / folder).rglob("*.py")]
    assert [path.relative_to(here).as_posix() for path in files if "njit" in path.read_text()] == ["base/compiled.py"]


@pytest.mark.integration
def test_sums_of_cores_release_the_lock_and_rules_do_not_count_references():
    @compiled("nsz")
    def total(x):
        return x.sum()

    @kernel
    def first(x):
        return x[0]

    assert total(np.ones(3)) == 3.0
    assert total.targetoptions["nogil"]
    assert total.targetoptions["fastmath"] == {"contract", "nsz"}
    assert first(np.ones(3)) == 1.0
    assert first.targetoptions["_nrt"] is False
    assert first.targetoptions["forceinline"]
