"""`ray up` on hosts of our own, a training run on them, `ray down`: docs/tutorials/cluster.md, word for word.

pytest -m cluster tests/cluster
ENGRAM_RECORD=benchmarks/results/cluster-local.json pytest -m cluster tests/cluster     keeps what was found
"""

import importlib.util
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import hosts
from engram.launch.metrics.provenance import provenance
from hosts import HOME, ROOT, Host, Hosts

pytestmark = pytest.mark.cluster

CLUSTER = f"{HOME}/cluster.yaml"
JOBS = "--address http://127.0.0.1:8265"
TRAIN = (
    "rl-train --ray-address auto --num-actors 2 --env boxworld --core lstm --preset easy --core-args hidden_size=16 "
    f"--envs-per-actor 16 --envs-per-update 16 --total-steps 300000 --log-every 20000 --run-dir {HOME}/runs/first"
)
OUTPUTS = ("output", "cluster after the run", "links left")
"""Of what was found, that which is not kept."""
RAY_PROCESS = re.compile(r"raylet|gcs_server|ray::|/ray/|\bray start\b")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Results of the tour, by name."""
    why = hosts.why_not()
    if not why and importlib.util.find_spec("aiohttp") is None:
        why = 'ray[default] is not installed: pip install -e ".[cluster]"'
    if why:
        pytest.skip(why)
    with Hosts(2) as network:
        found = tour(network)
        inits = [host.init for host in (network.operator, *network.hosts)]
    deadline = time.monotonic() + 60
    while (left := sum(map(runs, inits))) and time.monotonic() < deadline:
        time.sleep(0.1)
    found["processes after the hosts' end"] = left
    found["links left"] = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    if record := os.environ.get("ENGRAM_RECORD"):
        kept = {name: what for name, what in found.items() if name not in OUTPUTS}
        Path(record).write_text(json.dumps(provenance() | {"command": TRAIN} | kept, indent=1) + "\n")
    return found


def runs(process: str) -> bool:
    """Whether it does anything yet; one that has ended may wait long for its new parent to notice."""
    try:
        return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def tour(network: Hosts) -> dict[str, Any]:
    """Everything that a reader of docs/tutorials/cluster.md does, with what can be seen on the hosts meanwhile."""
    operator, machines = network.operator, network.hosts
    (operator.home / "cluster.yaml").write_text(yaml.safe_dump(own_addresses(machines)))
    operator.environment["RAY_AUTH_MODE"] = "token"
    operator.run("ray get-auth-token --generate")
    found: dict[str, Any] = {"hosts": {host.name: host.address for host in machines}}

    began = time.monotonic()
    # Again, if it fails: Ray takes a command for failed that somebody else stops for a moment.
    up = f"cd {ROOT} && ray up -y {CLUSTER}"
    operator.run(f"{up} || {up} || {up}", timeout=1800)
    wait_for(lambda: len(at_work(machines[1], "raylet")) > 0, 900, "the worker to join")
    found["seconds to a cluster"] = round(time.monotonic() - began)

    operator.run(f"nohup ray dashboard {CLUSTER} > dashboard.log 2>&1 &")
    wait_for(lambda: operator.run(f"ray job list {JOBS}", check=False).returncode == 0, 120, "the dashboard's port")
    began = time.monotonic()
    job = re.search(r"raysubmit_\w+", operator.run(f"ray job submit {JOBS} --no-wait -- {TRAIN}").stdout)
    assert job, "no job"
    wait_for(lambda: all(at_work(host, "ray::ActorProcess") for host in machines), 300, "actors on both hosts")
    found["threads of actors"] = [actor_threads(host) for host in machines]
    status = lambda: operator.run(f"ray job status {JOBS} {job.group()}", check=False).stdout  # noqa: E731
    wait_for(lambda: re.search("succeeded|failed|stopped", status(), re.IGNORECASE), 900, "the run's end")
    found["seconds of training"] = round(time.monotonic() - began)
    found["output"] = operator.run(f"ray job logs {JOBS} {job.group()}").stdout
    rows = [json.loads(row) for row in (machines[0].home / "runs/first/metrics.jsonl").read_text().splitlines()]
    found["steps"], found["env_steps_per_second"] = rows[-1]["step"], rows[-1]["metrics"]["perf/env_steps_per_second"]

    time.sleep(5)
    found["actors left after the run"] = sum(len(at_work(host, "ray::ActorProcess")) for host in machines)
    found["cluster after the run"] = operator.run(f"ray exec {CLUSTER} 'ray status'").stdout
    refusal = operator.run(f"RAY_AUTH_TOKEN=wrong ray job list {JOBS}", check=False).stdout
    found["job server with a wrong token"] = (re.findall("Authentication failed.*", refusal) or ["let in"])[-1]
    page = operator.run(f"curl -sS -m 5 http://{machines[0].address}:8265", check=False).stdout
    found["dashboard from outside"] = page.strip()

    began = time.monotonic()
    operator.run(f"ray down -y {CLUSTER}", timeout=300)
    while (left := [line for host in machines for line in at_work(host, "")]) and time.monotonic() - began < 240:
        time.sleep(1)
    found["Ray processes left"], found["seconds until nothing is left"] = left, round(time.monotonic() - began)
    return found


def own_addresses(machines: list[Host]) -> dict[str, Any]:
    """launch/cluster/local.yaml with what its first comment says to put in."""
    config = yaml.safe_load((ROOT / "launch/cluster/local.yaml").read_text())
    head, *workers = (host.address for host in machines)
    config["provider"] |= {"head_ip": head, "worker_ips": workers}
    config["auth"] = {"ssh_user": "root", "ssh_private_key": "~/.ssh/id"}
    return config


def at_work(host: Host, name: str) -> list[str]:
    """Ray's processes on a host that have `name` in their command line."""
    return [line for line in host.commands() if RAY_PROCESS.search(line) and name in line]


def actor_threads(host: Host) -> str:
    """OMP_NUM_THREADS of the actor on a host."""
    script = "tr '\\0' '\\n' < /proc/$(pgrep -f ray::ActorProcess | head -1)/environ | grep ^OMP_NUM_THREADS="
    return host.run(script).stdout.strip().partition("=")[2]


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(1)


def test_the_run_ends_as_it_should(found: dict[str, Any]) -> None:
    assert "finished after" in found["output"], found["output"]
    assert found["steps"] >= 60_000


def test_actors_have_one_thread_on_every_host(found: dict[str, Any]) -> None:
    assert found["threads of actors"] == ["1", "1"]


def test_the_cluster_outlives_the_run_and_its_actors_do_not(found: dict[str, Any]) -> None:
    assert found["actors left after the run"] == 0
    assert re.search(r"^ 2 local\.cluster\.node", found["cluster after the run"], re.MULTILINE)


def test_nobody_comes_in_without_the_token_or_from_outside(found: dict[str, Any]) -> None:
    assert found["job server with a wrong token"].startswith("Authentication failed")
    assert "onnect to" in found["dashboard from outside"]


def test_nothing_is_left(found: dict[str, Any]) -> None:
    assert found["Ray processes left"] == []
    assert found["processes after the hosts' end"] == 0
    assert not re.search(r"\bhost\d|br0", found["links left"])
