"""The scripts for SLURM, executed as on a node: a job's variables in the environment, `scontrol` notes its words."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engram.launch import cluster
from engram.launch.runs.saved import read
from runs import TINY

FOLDER = Path(cluster.__path__[0])
SCRIPTS = sorted(FOLDER.glob("slurm_*.sh"))


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """Environment of a job's script."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\n')
    (tools / "scontrol").chmod(0o755)
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    array = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"}
    sizes = {"SLURM_CPUS_PER_TASK": "2", "SLURM_JOB_NUM_NODES": "1"}
    cache = os.environ.get("NUMBA_CACHE_DIR", "")  # empty: numba's own, where this process keeps its code
    own = {"PATH": path, "ENGRAM_RUNS": str(tmp_path), "NUMBA_CACHE_DIR": cache}
    return os.environ | array | sizes | own | {"SLURM_JOB_NAME": "tiny", "SLURM_JOB_ID": str(os.getpid())}


def start(script: str, job: dict[str, str], *words: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["bash", str(FOLDER / script), *map(str, words)], env=job, start_new_session=True)


def wait_for_rows(process: subprocess.Popen[bytes], run: Path) -> None:
    deadline = time.monotonic() + 300
    while not ((run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def steps(run: Path) -> int:
    newest = max((run / "checkpoints").glob("step-*"))
    return read(newest)["members"][0]["learner"]["steps"]


def test_an_array_of_seeds_is_requeued_before_the_time_limit_and_resumes(job: dict[str, str], tmp_path: Path) -> None:
    run = tmp_path / "tiny-77-seed-3"
    process = start("slurm_array.sh", job, *TINY, "--local", "--total-steps", 10**9)
    wait_for_rows(process, run)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(180) == 0
    assert (tmp_path / "requeued").read_text() == "requeue 77_3\n"
    assert "seed = 3\n" in (run / "config.toml").read_text()
    before = steps(run)
    process = start("slurm_array.sh", job, *TINY, "--local", "--total-steps", 10**9)
    while len((run / "metrics.jsonl").read_text().splitlines()) and (
        json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] <= before
    ):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(180) == 0
    assert steps(run) > before
    assert (tmp_path / "requeued").read_text() == "requeue 77_3\n", "a canceled job is not queued again"


def test_the_exit_code_of_a_mistake_is_the_jobs(job: dict[str, str], tmp_path: Path) -> None:
    assert start("slurm_array.sh", job, "--lern", 3).wait(180) == 2
    assert not (tmp_path / "requeued").exists()


def test_a_run_on_the_nodes_of_a_job(job: dict[str, str], tmp_path: Path) -> None:
    """Of one node: `srun` starts the others with the same command."""
    process = start("slurm_ray.sh", job, *TINY, "--num-actors", 1, "--total-steps", 200)
    assert process.wait(300) == 0
    assert steps(tmp_path / f"tiny-{os.getpid()}") >= 200
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_are_free_of_mistakes_that_shellcheck_knows(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(script)], check=True)
