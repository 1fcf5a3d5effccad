"""Faults of whole runs: disks, clocks, foreign checkpoints, notices at a bad time."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from engram.launch.metrics.writer import MetricsWriter, new_name
from engram.launch.runs.directory import resume_command
from engram.launch.train import command as train
from engram.learners import checkpoints
from process_tree import tree
from runs import FOREVER, TINY, family, gone, last_step, rows, start, steps_saved, stop, wait_for, workers


def run_train(*words: object) -> int:
    return train.main([str(word) for word in words])


def test_a_spot_notice_while_every_actor_hangs(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(*TINY, *FOREVER, "--run-dir", run, "--num-actors", 2, "--actor-timeout", 1000)
    wait_for(lambda: last_step(run) > 0)
    for actor in workers(process.pid):
        actor.send_signal(signal.SIGSTOP)
    time.sleep(1)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: steps_saved(run), seconds=20)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "stopped (SIGTERM)" in output
    assert time.monotonic() - began < 30
    assert steps_saved(run)[-1] == last_step(run)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A real file system of 2 MB."""
    place = Path(tempfile.mkdtemp())
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "t", place], capture_output=True, check=False)
    if mounted.returncode != 0:
        place.rmdir()
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)
    place.rmdir()


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_training_goes_on_while_the_disk_is_full(disk: Path, how: str) -> None:
    run = disk / "run"
    words = ("--local", "--checkpoint-every", 0.1, "--log-every", 2000, "--keep-checkpoints", 1)
    process = start(*TINY, *FOREVER, "--run-dir", run, *words)
    wait_for(lambda: steps_saved(run) and rows(run))
    if how == "full":
        with (disk / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, free_bytes(disk))
    else:
        # Checkpoints make new files and notice; a file that is open for writing forbids remounting the disk itself.
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "t", run / "checkpoints"], check=True)
    time.sleep(4)
    if how == "full":
        valid = checkpoints.latest(run / "checkpoints")
        assert valid is not None
        (disk / "filler").unlink()
    else:
        subprocess.run(["umount", "-l", run / "checkpoints"], check=True)
        valid = checkpoints.latest(run / "checkpoints")
        assert valid is not None
    wait_for(lambda: steps_saved(run)[-1] > checkpoints.step_of(valid))
    code, output = stop(process)
    assert code == 0, output
    said = "No space left on device" if how == "full" else "Read-only file system"
    assert f"{said}; earlier checkpoints remain intact" in output
    assert checkpoints.load(run / "checkpoints" / f"step-{steps_saved(run)[-1]:012d}")


def free_bytes(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_bsize


# -- clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("faketime") is None, reason="needs libfaketime (Debian: faketime)")
def test_a_clock_that_jumps_changes_nothing(tmp_path: Path) -> None:
    run, clock = tmp_path / "run", tmp_path / "clock"
    clock.write_text("+0")
    library = next(Path("/usr/lib").rglob("libfaketime.so.1"))
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    words = ("--local", "--checkpoint-every", 1, "--time-limit", 0.25, "--log-every", 200)
    began = time.monotonic()
    process = start(*TINY, *FOREVER, "--run-dir", run, *words, env=environment)
    for jump in ("-3d", "+5d", "-1h"):
        seen = last_step(run)
        wait_for(lambda seen=seen: last_step(run) > seen, seconds=60)
        clock.write_text(jump)
        saved = steps_saved(run)
        wait_for(lambda saved=saved: steps_saved(run)[-1:] > saved[-1:], seconds=60)
    output, _ = process.communicate(timeout=120)
    seconds = time.monotonic() - began
    assert process.returncode == 0, output
    assert "stopped (time limit)" in output
    times = [row["time"] for row in rows(run)]
    assert max(np.diff(times)) > 86_400, "the clock was not set"
    assert min(np.diff(times)) < -86_400
    wall = [row["wall_s"] for row in rows(run)]
    assert 10 < wall[-1] < seconds
    assert wall == sorted(wall)
    steps = [row["step"] for row in rows(run)]
    assert steps == sorted(set(steps))


def test_event_files_sort_by_age_although_the_clock_was_set_back(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, 0) as writer:
        writer.write(1, {"x": 1.0})
    (first,) = (tmp_path / "tensorboard").iterdir()
    later = first.with_name(first.name.replace(first.name.split(".")[3], f"{time.time_ns() + 10**18:019d}"))
    first.rename(later)  # as if written while the clock was thirty years ahead
    assert new_name(tmp_path / "tensorboard").name > later.name


# -- environments that keep their state to themselves
# ------------------------------------------------------------------------


def test_an_environment_that_cannot_be_saved_is_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    words = ("--env", "secretive:Secretive", "--core", "lstm", "--core-args", "hidden_size=8", "--sync", "--local")
    words += ("--envs-per-actor", "2", "--unroll-length", "5", "--checkpoint-every", "0.01", "--run-dir", str(run))
    assert run_train(*words, "--total-steps", 200) == 0
    output = capfd.readouterr().out
    assert output.count("checkpoints lack the actors' state") == 1
    assert "Secretive" in output
    newest = checkpoints.latest(run / "checkpoints")
    assert newest is not None
    assert "actors" not in checkpoints.load(newest)
    assert run_train("--resume", run, "--total-steps", 300) == 0
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] >= 300


def part_of_ray(run: "subprocess.Popen[str]", name: str) -> psutil.Process:
    """One of the main processes of a run's private Ray."""
    return next(each for each in tree(run.pid) if each.name() == name)


def rests(pid: int) -> bool:
    """Whether a process computed next to nothing for a second, and did not wait for a processor either."""
    before, waiting = psutil.Process(pid).cpu_times(), 0
    for _ in range(20):
        time.sleep(0.05)
        for file in Path(f"/proc/{pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # a thread that has ended
                if file.read_text().rpartition(")")[2].split()[0] == "R":
                    waiting += 1
                    break
    after = psutil.Process(pid).cpu_times()
    return waiting < 10 and after.user + after.system - before.user - before.system < 0.2


@pytest.mark.parametrize(
    ("name", "number", "said"),
    [
        ("raylet", signal.SIGKILL, "ended (Ray's raylet died)"),
        ("gcs_server", signal.SIGKILL, "ended (Ray's gcs_server died)"),
        ("raylet", signal.SIGSTOP, "ended (no update for"),
    ],
    ids=["raylet killed", "gcs killed", "raylet stopped"],
)
def test_a_run_survives_its_ray_in_a_checkpoint(tmp_path: Path, name: str, number: signal.Signals, said: str) -> None:
    run = tmp_path / "run"
    process = start(*TINY, *FOREVER, "--run-dir", run, "--stall-timeout", 0.1, "--actor-timeout", 1000)
    wait_for(lambda: last_step(run) > 0)
    everyone = family(process.pid)
    for actor in workers(process.pid):  # so that no unroll is under way, in which Ray may end the learner's process
        actor.send_signal(signal.SIGSTOP)
    wait_for(lambda: rests(process.pid), seconds=60)
    part_of_ray(process, name).send_signal(number)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 3, output
    assert said in output
    assert f"continue with: {resume_command(run)}" in output
    assert steps_saved(run)[-1] > 0
    wait_for(lambda: gone(everyone), seconds=90)


DEAD_RAY = """
import os, pools, ray, time
from engram.actors.pool import TransportDiedError
from engram.actors.remote.pool import RayPool
from engram.launch.cluster.ray_session import start_ray
from pools import FACTORY, open_window, take, weights
ray.cloudpickle.register_pickle_by_value(pools)
start_ray(1)
pool = RayPool(FACTORY.make_actor, 1, 0, window=open_window())
pool.publish(weights(1))
take(pool)
(raylet,) = [each.process for each in ray._private.worker._global_node.all_processes["raylet"]]
raylet.kill()
raylet.wait()
pool._window.requests_per_slot += 1  # room for a request, which would copy the weights into Ray's store
for call in (lambda: pool.publish(weights(2)), lambda: take(pool)):
    try:
        call()
    except TransportDiedError as problem:
        print(problem, flush=True)
os._exit(0)  # ray.shutdown would wait for the raylet
"""


def test_nothing_is_asked_of_a_dead_ray() -> None:
    """Ray would end the process inside the call, without a checkpoint."""
    path = os.pathsep.join(["tests/support", os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", DEAD_RAY],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count("Ray's raylet died") == 2  # Ray prints there, too


@pytest.mark.slow
def test_a_signal_is_heard_while_ray_does_not_answer(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(*TINY, *FOREVER, "--run-dir", run)
    wait_for(lambda: last_step(run) > 0)
    everyone = family(process.pid)
    part_of_ray(process, "raylet").send_signal(signal.SIGSTOP)
    time.sleep(2)
    code, output = stop(process)
    assert code == 0, output
    assert "stopped (SIGTERM)" in output
    assert steps_saved(run)[-1] > 0
    wait_for(lambda: gone(everyone), seconds=90)


def test_a_signal_while_ray_starts_is_a_clean_end(tmp_path: Path) -> None:
    process = start(*TINY, *FOREVER, "--run-dir", tmp_path / "run")
    wait_for(lambda: any(each.name() == "gcs_server" for each in tree(process.pid)))
    everyone = family(process.pid)
    code, output = stop(process)
    assert code == 0, output
    assert "stopped (SIGTERM)" in output
    wait_for(lambda: gone(everyone), seconds=90)
