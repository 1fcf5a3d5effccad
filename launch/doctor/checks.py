"""Estimated cost of a run, facts about machines, and problems that rl-doctor reports. `look` runs on every node."""

import os
import platform
import shutil
import socket
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from ...actors.unroll import nbytes
from ...agents.values import flatten
from ...base.memory import memory as memory_here
from ...base.memory import own_memory
from ...base.messages import size_in_words
from ...base.places import writable_home
from ...base.processes import num_cores
from ..cluster.ray_session import OBJECT_STORE_BYTES
from ..config.run_config import RunConfig
from ..metrics.provenance import PACKAGES, machine, package_version

RAY_BYTES = 400 * 2**20  # Bytes of Ray's own processes on one machine
TRAINING_COPIES, CHECKPOINT_COPIES = 4, 3
"""Multiples of the size of the weights: weights, at most two moments and, in training, gradients."""
FILES, FILES_PER_ACTOR = 1024, 32  # Open files that Ray's processes need; with fewer, connections fail
MEMORY_LIMIT = 0.95  # Fraction of a machine's memory above which Ray kills processes
LESS = "fewer --num-actors or --envs-per-actor, or a shorter --unroll-length"

Verdict = Literal["ok", "warning", "problem"]


class Estimate(NamedTuple):
    """Cost of a run in bytes."""

    parameters: int  # Parameters of the network (a count, not bytes)
    unroll: int  # One unroll of one actor
    object_store: int  # Maximum size of unrolls and weights in flight; 0 with --local
    learner: int  # Memory of the learner's process
    memory: int  # Total of all processes and the object store, on all machines
    disk: int  # Checkpoints


class Facts(NamedTuple):
    """Facts about one machine, as seen by a process on it. Sizes are in bytes."""

    name: str
    versions: dict[str, str | None]  # Versions of Python and the packages
    cores: int  # Cores that this run's processes may use
    gpus: list[str]
    memory: int  # Free memory, within the container's limit
    shared_memory: int  # Free bytes in /dev/shm
    files: int  # Files that a process may open, after raising its soft limit, as Ray does
    learners: int = 0  # Ray resource `learner`: additional learners for which the node is reserved


class Finding(NamedTuple):
    """One line of rl-doctor's table."""

    what: str
    found: str
    verdict: Verdict
    advice: str = ""


def estimate(config: RunConfig, work: int, actors: int) -> Estimate:
    """Estimate the cost of a run from a few steps of one environment. Raises ValueError if the agent cannot be made.

    Args:
        work: bytes of the observations of an update and of all actors, from `check_memory`.
    """
    sizes: list[int] = []
    for length in (1, 2):
        with closing(replace(config.factory(), num_envs=1, unroll_length=length).make_actor(0)) as actor:
            sizes.append(nbytes(actor.unroll()))
            weights = flatten(actor.agent)
    unroll = config.actor_envs * (sizes[0] + (config.unroll_length - 1) * (sizes[1] - sizes[0]))
    whole, private = own_memory()
    learner = whole + work + TRAINING_COPIES * weights.nbytes * config.num_members
    store, processes = 0, 0
    if not config.in_process:
        ahead = config.lag_bound + 1
        unrolls = actors if config.synchronous else -(-ahead * config.columns // config.actor_envs)
        store = config.num_members * (unrolls * unroll + (1 + ahead) * weights.nbytes)
        processes = RAY_BYTES + actors * (private + 2 * unroll)
    disk = (config.keep_checkpoints + 2) * CHECKPOINT_COPIES * weights.nbytes * config.num_members
    return Estimate(weights.size, unroll, store, learner, learner + processes + store, disk)


def look() -> Facts:
    """Return the facts about this process's machine."""
    import resource  # not on Windows

    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Facts(
        name=socket.gethostname(),
        versions={"python": platform.python_version()} | {name: package_version(name) for name in PACKAGES},
        cores=num_cores(),
        gpus=machine()["gpus"],
        memory=memory_here().free,
        shared_memory=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
        files=2**20 if files == resource.RLIM_INFINITY else files,
    )


def examine(config: RunConfig, here: Facts, nodes: Sequence[Facts], estimate: Estimate, actors: int) -> list[Finding]:
    """Return all findings; `here` is the learner's machine, and `nodes` are all machines."""
    findings = [versions(here, nodes), processors(config, nodes, actors)]
    if config.num_learners > 1:
        findings.append(learners(config, nodes, estimate))
    for node in nodes:
        findings += node_findings(config, node, share_of(estimate, node, here, nodes), estimate, actors)
    findings.append(run_disk(config, estimate))
    if (threads := os.environ.get("OMP_NUM_THREADS", "1")) != "1":
        value = f"OMP_NUM_THREADS = {threads}"
        findings.append(Finding("threads", value, "warning", "unset it: actors then use one thread each"))
    if (mode := os.environ.get("RAY_AUTH_MODE", "token")) != "token":
        value = f"RAY_AUTH_MODE = {mode}"
        findings.append(Finding("token", value, "warning", "unset it: anyone on the network can run code as you"))
    if writable_home() is None:
        value = f"{os.path.expanduser('~')} cannot be written"
        findings.append(Finding("home directory", value, "warning", "HOME=DIR, a directory for tokens and caches"))
    if not torch.cuda.is_available() and Path("/proc/driver/nvidia/version").exists():
        value = f"torch {torch.__version__} does not use this machine's GPU"
        findings.append(Finding("GPU", value, "warning", "install torch for the GPU's driver, or --device cpu"))
    return findings


def _if(wrong: object, what: str, verdict: Verdict, value: str, advice: str) -> Finding:
    return Finding(what, value, verdict, advice) if wrong else Finding(what, value, "ok")


def versions(here: Facts, nodes: Sequence[Facts]) -> Finding:
    """Check that all nodes have exactly the same versions of Python and the packages."""
    other = [
        f"{name} {version} here, {node.versions.get(name)} on {node.name}"
        for name, version in here.versions.items()
        for node in nodes
        if node.versions.get(name) != version
    ]
    value = "; ".join(other) or ", ".join(f"{name} {version}" for name, version in here.versions.items())
    advice = "one image, or one constraints.txt, for all nodes (docs/tutorials/cluster.md)"
    return _if(other, "versions", "problem", value, advice)


def processors(config: RunConfig, nodes: Sequence[Facts], actors: int) -> Finding:
    """Check that there is a core for every actor."""
    cores, gpus = sum(node.cores for node in nodes), sum(len(node.gpus) for node in nodes)
    value = f"{cores} cores and {gpus} GPUs on {len(nodes)} machine(s) for {actors} actors"
    full = actors * config.actor_cpus > cores
    advice = f"--num-actors {max(1, int(cores / config.actor_cpus))}: "
    if config.ray_address:
        return _if(full, "processors", "problem", value, f"{advice}the others wait forever")
    return _if(full, "processors", "warning", value, f"{advice}they take turns")


def learners(config: RunConfig, nodes: Sequence[Facts], estimate: Estimate) -> Finding:
    """Check that additional learners have CPUs in addition to the actors', and reserved nodes if there are any."""
    cores, reserved = sum(node.cores for node in nodes), sum(node.learners for node in nodes)
    part = f"{config.share_envs} environments of an update each, {size_in_words(4 * estimate.parameters)} of gradient"
    if config.population:
        part = f"{-(-config.population // config.num_learners)} members each at most"
    room, claim = max(0, int(cores - (config.fixed_actors or 1) * config.actor_cpus)), f"a CPU of {cores}"
    if 0 < reserved < room:
        room, claim = reserved, f"one of {reserved} Ray resources `learner`"
    advice, full = f"--num-learners {room + 1}: each but the first claims {claim}", config.num_learners - 1 > room
    verdict: Verdict = "problem" if config.ray_address else "warning"
    return _if(full, "learners", verdict, f"{config.num_learners}: {part}", advice)


def share_of(estimate: Estimate, node: Facts, here: Facts, nodes: Sequence[Facts]) -> int:
    """Return the run's bytes on one node: the learner and its unrolls are here, actors are spread over all cores."""
    local = estimate.learner + estimate.object_store
    share = (estimate.memory - local) * node.cores // max(1, sum(x.cores for x in nodes))
    return share + (local if node.name == here.name else 0)


def node_findings(config: RunConfig, node: Facts, share: int, estimate: Estimate, actors: int) -> list[Finding]:
    """Check a node's memory (`share` bytes needed), shared memory and limit of open files."""
    value = f"{size_in_words(node.memory)} free on {node.name}, {size_in_words(share)} needed"
    findings = [_if(share > MEMORY_LIMIT * node.memory, "memory", "problem", value, LESS)]
    if config.in_process:
        return findings
    files = FILES + FILES_PER_ACTOR * actors
    value, advice = f"{node.files:,} allowed on {node.name}, {files:,} needed", "ulimit -n 65536"
    findings.append(_if(node.files < files, "open files", "problem", value, advice))
    needed = max(estimate.object_store, 0 if config.ray_address else OBJECT_STORE_BYTES)
    value = f"{size_in_words(node.shared_memory)} free in /dev/shm of {node.name}, {size_in_words(needed)} needed"
    if needed > OBJECT_STORE_BYTES and not config.ray_address:
        value = f"{value}, {size_in_words(OBJECT_STORE_BYTES)} allowed"
        return [*findings, Finding("shared memory", value, "problem", LESS)]
    advice = f"docker run --shm-size={max(2, round(1.5 * needed / 2**30))}g, or Ray uses slow files"
    return [*findings, _if(node.shared_memory < needed, "shared memory", "warning", value, advice)]


def run_disk(config: RunConfig, estimate: Estimate) -> Finding:
    """Check that the checkpoints fit on the disk and can be written."""
    folder = Path(config.run_dir or "runs").absolute()
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        return Finding("run directory", f"{folder} cannot be written", "problem", "another --run-dir")
    free = shutil.disk_usage(folder).free
    value = f"{size_in_words(free)} free under {folder}, {size_in_words(estimate.disk)} for checkpoints"
    advice = "another --run-dir, or fewer --keep-checkpoints"
    return _if(free < estimate.disk + 2**28, "run directory", "problem", value, advice)
