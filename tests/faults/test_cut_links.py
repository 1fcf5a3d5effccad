"""The link to a learner's host is cut: the others continue."""

import re
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hosts
from hosts import HOME, Host, Hosts
from runs import TINY, last_step, rows, wait_for

REBUILT_SECONDS = 15.0
WORDS = (*TINY, "--num-actors", 4, "--envs-per-update", 16, "--num-learners", 2, "--log-seconds", 0.5)
CASES = [(0, "the group of learners restarts from step"), (2, "learner 0 continues with the members of learner 1")]
RAY = f"{sys.executable} -m ray.scripts.scripts start --object-store-memory=200000000 --num-cpus=3"


@pytest.fixture
def network() -> Iterator[Hosts]:
    """Hosts with Ray: the operator's has the head, every other one has room for a learner."""
    if why := hosts.why_not(ssh=False):
        pytest.skip(why)
    with Hosts(2, ssh=False) as network:
        operator = network.operator
        own = {"PATH": f"{Path(sys.executable).parent}:{hosts.PATH}", "OMP_NUM_THREADS": "1"}
        own |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
        for host in (operator, *network.hosts):
            host.environment |= own
        operator.run(f"{RAY} --head --port=6379 --node-ip-address={operator.address} --include-dashboard=false")
        yield network


def start_ray(network: Hosts, host: Host) -> None:
    """Start Ray on a host, again and again if it ends, as cluster managers do, and wait for it."""
    learner = """--resources='{"learner": 1}'"""
    join = f"{RAY} --address={network.operator.address}:6379 --node-ip-address={host.address} {learner} --block"
    host.run(f"(while sleep 1; do {join}; done) > ray.log 2>&1 &")
    wait_for(lambda: host.address in nodes(network.operator))


def nodes(operator: Host) -> str:
    """Addresses of the nodes that Ray considers alive."""
    program = "import ray; ray.init(); print(*(each['NodeManagerAddress'] for each in ray.nodes() if each['Alive']))"
    done = operator.run(
        f'RAY_ADDRESS={operator.address}:6379 {sys.executable} -c "{program}" 2> /dev/null', check=False
    )
    return done.stdout


@pytest.mark.parametrize("then", ["the link stays down", "the link comes back", "the link comes back late"])
@pytest.mark.parametrize(("members", "message"), CASES, ids=["one agent", "population"])
def test_the_link_to_a_learner_is_cut(network: Hosts, members: int, message: str, then: str) -> None:
    """In a population, the members of the lost learner continue within seconds in the run's process. Late is after Ray
    has given the host up."""
    operator, first, _ = network.operator, *network.hosts
    address, run = f"{operator.address}:6379", operator.home / ("run/members/1" if members else "run")
    start_ray(network, first)
    words = ("rl-train", *WORDS, "--population", members, "--ray-address", address, "--total-steps", 10**9)
    words = (*words, "--run-dir", f"{HOME}/run")
    process = operator.start(f"echo $$ > pid; exec {' '.join(map(str, words))}")
    wait_for(lambda: last_step(run) > 500, process=process)
    network.set_link(first, "down")
    began = time.monotonic()
    time.sleep(0.5)
    reached = last_step(run)
    wait_for(lambda: last_step(run) > reached + 100, process=process)
    seconds = time.monotonic() - began
    if then == "the link comes back late":
        wait_for(lambda: first.address not in nodes(operator), process=process)
    if then != "the link stays down":
        network.set_link(first, "up")
    joined = last_step(run)
    wait_for(lambda: last_step(run) > joined + 500, process=process)
    operator.run("kill $(cat pid)")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    lost_learner = r"(learner 1 has not responded for 5 s|a learner is lost \(.*\))"
    assert re.search(f"{lost_learner}: {message}", output), "Ray may notice it first"
    steps = [row["step"] for row in rows(run)]
    assert steps == sorted(steps)
    assert seconds < REBUILT_SECONDS, seconds
