"""A user without a home directory that can be written, as in a container: training, evaluation and rl-doctor work."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs import steps_saved

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="becomes another user: needs root and setpriv"
)
NOBODY = 65534
# The checkout and Python may be readable for root only: the capability reads everything and writes nothing.
READER = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
WORDS = (
    *("--env", "CartPole-v1", "--core", "lstm", "--core-args", "hidden_size=8", "--envs-per-actor", "4"),
    *("--envs-per-update", "4", "--unroll-length", "6", "--log-every", "1"),
)
NOWHERE, ROOTS = "/nonexistent", "/"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """An empty directory of that user's; pytest's are readable for root only, and too long for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="nobody-") as name:
        os.chown(name, NOBODY, NOBODY)
        yield Path(name)


def run(folder: Path, home: str, command: str, *words: object) -> "subprocess.CompletedProcess[str]":
    """A command as that user; pieces of its environment are not those of this process."""
    environment = {"HOME": home, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "ENGRAM_COMPILED": "0"} | {
        "PATH": os.environ["PATH"]
    }
    program = (*READER, str(Path(sys.executable).with_name(command)), *map(str, words))
    return subprocess.run(program, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("where", [("--local",), ()], ids=["local", "ray"])
def test_training_and_evaluation(folder: Path, where: tuple[str, ...]) -> None:
    path = folder / f"run{len(where)}"
    done = run(folder, NOWHERE, "rl-train", *WORDS, *where, "--total-steps", 60, "--run-dir", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert steps_saved(path)[-1] >= 60
    if where:
        done = run(folder, NOWHERE, "rl-eval", path, "--episodes", 2)
        assert (done.returncode, done.stderr) == (0, "")
        assert "evaluation seed 0" in done.stdout


def test_rl_doctor(folder: Path) -> None:
    done = run(folder, ROOTS, "rl-doctor", "--json", *WORDS)
    assert done.returncode == 0, done.stderr
    found = {each["what"]: each for each in json.loads(done.stdout)["findings"]}
    assert found["run directory"]["verdict"] == "ok"
