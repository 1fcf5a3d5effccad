"""rl-doctor on machines that are really in a bad way, and its predictions against real runs."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import hosts
from engram.actors.packed import nbytes
from engram.agents.values import flatten
from engram.base.errors import EngramError
from engram.launch.config.run_config import RunConfig
from engram.launch.config.run_flags import preset
from engram.launch.doctor import command as doctor
from engram.launch.doctor.command import Estimate, Facts, Finding, estimate, examine, look
from process_tree import tree_memory

COMMANDS = Path(sys.executable).parent
TINY = [
    *("--env", "boxworld", "--core", "lstm", "--core-args", "hidden_size=8", "--conv-channels", "2", "--env-args"),
    *("path_lengths=1", "num_distractors=0", "max_steps=9", "--envs-per-actor", "4", "--envs-per-update", "4"),
]
HERE = Facts("head", cores=8, gpus=[], memory=2**34)
SMALL = Estimate(unroll=10**6, object_store=10**8, memory=10**9, disk=10**6)


def find(findings: list[Finding], what: str) -> Finding:
    (found,) = [finding for finding in findings if finding.what == what]
    return found


def report(*words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of rl-doctor."""
    command = [f"{COMMANDS}/rl-doctor", "--json", *TINY, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    return done.returncode, {each["what"]: each for each in found.pop("findings")} | {"all": found}


def test_a_machine_in_a_bad_way_is_told_what_to_change() -> None:
    code, found = report("--num-actors", "300", "--keep-checkpoints", "1000000000")
    assert code == 1
    assert found["all"]["verdict"] == "problem"
    assert found["run directory"]["verdict"] == "problem"
    assert "--keep-checkpoints" in found["run directory"]["advice"]
    assert found["memory"]["verdict"] == "problem", "300 processes"
    assert "--num-actors" in found["memory"]["advice"]


def cpus(config: RunConfig, nodes: list[Facts], actors: int) -> Finding:
    return find(examine(config, nodes, SMALL, actors), "CPUs")


def test_actors_that_a_cluster_has_no_room_for_are_a_problem() -> None:
    joined = RunConfig(ray_address="auto")
    nodes = [HERE, HERE._replace(name="worker")]
    assert cpus(joined, nodes, 16).verdict == "ok"
    found = cpus(joined, nodes, 17)
    assert (found.verdict, found.advice) == ("problem", "--num-actors 16: the others wait forever")
    found = cpus(RunConfig(ray_address="auto", actor_cpus=2.5), nodes, 16)
    assert found.advice == "--num-actors 6: the others wait forever", "15 of 16 cores"
    assert cpus(RunConfig(), [HERE], 17).verdict == "warning", "a private Ray lets them take turns"


@pytest.mark.nightly
def test_nodes_of_a_cluster_report_the_cores_that_ray_offers() -> None:
    # A separate cluster in namespaces, so that no other Ray on this machine is touched.
    if why := hosts.why_not(ssh=False):
        pytest.skip(why)
    ray = f"{sys.executable} -m ray.scripts.scripts start --head --num-cpus=3 --include-dashboard=false"
    start = ray + " > /dev/null;"
    enter = f"mount -t tmpfs tmpfs /tmp; ip link set lo up; {start} exec {COMMANDS}/rl-doctor --json"
    words = f"{' '.join(TINY)} --ray-address 127.0.0.1:6379 --num-actors 2 --run-dir /dev/shm/run"
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}
    namespaces = ["unshare", "-mnpf", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*namespaces, "bash", "-c", f"{enter} {words}"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stdout, done.stderr
    (node,) = json.loads(done.stdout)["nodes"]
    assert node["cores"] == 3


def test_too_little_memory_is_a_problem() -> None:
    nodes = [HERE._replace(memory=6 * 10**8), HERE._replace(name="worker", memory=6 * 10**8)]
    assert find(examine(RunConfig(), nodes, SMALL, 1), "memory").verdict == "ok"
    assert find(examine(RunConfig(), nodes[:1], SMALL, 1), "memory").verdict == "problem"


def test_facts_are_those_of_this_machine() -> None:
    facts = look()
    assert facts.memory == pytest.approx(psutil.virtual_memory().available, rel=0.3)
    assert facts.name == socket.gethostname()


@pytest.mark.parametrize("core", ["gru", "concrete"])
def test_estimated_bytes_are_those_of_real_unrolls(core: str) -> None:
    config = RunConfig(env="t-maze", agent=preset("paper", "t-maze", core).agent, envs_per_actor=6, unroll_length=7)
    found = estimate(config, 10**6, actors=3)
    actor = config.factory().make_actor(2)
    actor.unroll()
    unroll, weights = nbytes(actor.unroll()), flatten(actor.agent)
    assert found.unroll == pytest.approx(unroll, rel=0.02)  # episodes that ended take a few bytes
    under_way = -(-2 * config.envs_per_update // 6)  # environments of two updates, while the learner has one of them
    assert found.object_store == pytest.approx(under_way * unroll + 3 * weights.nbytes, rel=0.02)


@pytest.mark.nightly
@pytest.mark.slow
def test_estimated_memory_is_within_a_factor_of_two_of_a_real_runs(tmp_path: Path) -> None:
    """A run on Ray with two actors, watched until its first updates are done."""
    words = ["--num-actors", "2", "--core-args", "hidden_size=64"]
    _, found = report(*words)
    command = [str(COMMANDS / "rl-train"), *TINY, *words, "--run-dir", str(tmp_path / "run"), "--log-every", "100"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    most, rows, deadline = 0, tmp_path / "run" / "metrics.jsonl", time.monotonic() + 240
    while not (rows.exists() and rows.read_bytes().count(b"\n") >= 20):
        assert process.poll() is None
        assert time.monotonic() < deadline
        most = max(most, tree_memory(process.pid))
        time.sleep(0.3)
    process.terminate()
    process.wait(60)
    assert most / 2 <= found["all"]["estimate"]["memory"] <= most * 2


def test_a_mistake_is_one_line_and_help_needs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EngramError, match=r"unknown flag '--num-actor'.*--num-actors"):
        doctor.main(["--num-actor", "3"])
    with pytest.raises(EngramError, match=r"unknown core 'lstn'"):
        doctor.main(["--core", "lstn", "--env", "t-maze"])
    assert doctor.main(["--help"]) == 0
    assert "rl-doctor [--json]" in capsys.readouterr().out


def test_the_tables_say_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.show([Finding("memory", "1 GB free", "problem", "buy some")], SMALL._asdict())
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("memory", "1 GB free", "problem", "buy some", "100 MB"))
