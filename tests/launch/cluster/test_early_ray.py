"""The Ray that `rl-train` starts before it has read its words: when it does, and that nothing of it is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engram.launch.cluster.early_ray import DEFAULTS, MOST, cpus_for, cpus_needed
from engram.launch.run.config import RunConfig

RL_TRAIN = str(Path(sys.executable).with_name("rl-train"))


def test_the_defaults_are_the_configurations() -> None:
    assert {name: getattr(RunConfig(), name) for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("words", "cpus"),
    [
        ("", 1),
        ("--num-actors 3", 3),
        ("--num_actors=3 --actor-cpus 0.5", 2),
        ("--num-actors 2 --actor-cpus 0", 1),
        ("--num-actors auto", os.cpu_count()),
        (f"--num-actors {MOST + 1}", None),
        ("--num-actors many", None),
        ("--num-actors", None),
        ("--local", None),
        ("--no-local", None),
        ("--help", None),
        ("--list", None),
        ("--restarts 2", None),
        ("--ray-address auto", None),
        ("--resume nowhere", None),
        ("--resume s3://bucket/run", None),
        ("--config FILE", 5),
        ("--config FILE --num-actors 2", 2),
        ("--resume RUN", 5),
        ("--config LOCAL", None),
        ("--config CLUSTER", None),
    ],
)
def test_processors_from_the_words(words: str, cpus: int | None, tmp_path: Path) -> None:
    for name, text in (
        ("config.toml", "num_actors = 5"),
        ("local", "local = true"),
        ("cluster", "ray_address = 'a:1'"),
    ):
        (tmp_path / name).write_text(text)
    files = {"FILE": "config.toml", "RUN": ".", "LOCAL": "local", "CLUSTER": "cluster"}
    assert cpus_for([str(tmp_path / files[word]) if word in files else word for word in words.split()]) == cpus


def test_a_ray_has_room_for_every_actor() -> None:
    assert [cpus_needed(n, cpus) for n, cpus in ((1, 1.0), (3, 0.5), (2, 0.0), (4, 2.0))] == [1, 2, 1, 8]


def descendants_until(process: "subprocess.Popen[str]", seconds: float, name: str) -> list[psutil.Process]:
    """All processes that `process` has started when one whose command line has `name` in it is among them."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = psutil.Process(process.pid).children(recursive=True)
        for each in found:
            try:
                if name in " ".join(each.cmdline()):
                    return found
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.02)
    raise AssertionError(f"no {name} within {seconds} s")


@pytest.mark.parametrize(
    ("number", "began"),
    [
        (signal.SIGINT, "gcs_server"),  # while torch is imported; tests/faults has SIGTERM
        (signal.SIGTERM, "ray::IDLE"),  # when Ray is connected
    ],
)
def test_a_signal_before_the_first_update_prints_no_stack(number: signal.Signals, began: str, tmp_path: Path) -> None:
    words = ["--env", "sequence-recall", "--core", "lstm", "--core-args", "hidden_size=8"]
    command = [RL_TRAIN, *words, "--run-dir", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    family = descendants_until(process, 60, began)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert f"stopped ({number.name})" in output
    psutil.wait_procs(family, timeout=20)
    assert not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def test_after_a_mistake_nothing_of_ray_is_left() -> None:
    process = subprocess.Popen([RL_TRAIN, "--env", "boxwrld"], stderr=subprocess.PIPE, text=True)
    family = descendants_until(process, 60, "gcs_server")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith("rl-train: unknown environment 'boxwrld'")
    assert errors.count("\n") == 1
    psutil.wait_procs(family, timeout=20)
    assert not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("problem", "code"), [("SystemExit()", 0), ("SystemExit(3)", 3), ("SystemExit('why')", 1), ("ValueError('why')", 1)]
)
def test_a_process_that_ends_at_once_ends_as_its_exception_says(problem: str, code: int) -> None:
    program = f"""
from engram.launch.cluster.early_ray import EarlyRay
EarlyRay.leave(object.__new__(EarlyRay), {problem})
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == code
    assert ("ValueError: why" in found.stderr) == problem.startswith("ValueError")
