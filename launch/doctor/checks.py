"""rl-doctor's judgement: what is wrong with the machines for a run, and what to change. No looking, only comparing."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from ...base.places import cache_folder, writable_home
from ...envs.registration import takes_workers
from ..cluster.ray_session import OBJECT_STORE_BYTES, token_file, token_is_kept
from ..run.config import RunConfig
from .facts import PORTS, Facts
from .prediction import Prediction

FILES = 1024
"""Open files that Ray's processes need; below it connections fail."""
FILES_PER_ACTOR = 32
SPILL_LIMIT = 0.95
"""Ray refuses to put objects aside on a disk that is fuller than this."""
MEMORY_LIMIT = 0.95
"""Fraction of a machine's memory at which Ray kills processes."""

SLOW_STEP = 2e-4
"""Seconds of an environment step from which workers save more than their messages cost."""

LESS = "fewer --num-actors or --envs-per-actor, or a shorter --unroll-length"

Verdict = Literal["ok", "warning", "problem"]


class Finding(NamedTuple):
    """One line of rl-doctor's table."""

    what: str
    found: str
    verdict: Verdict
    advice: str = ""


def examine(
    config: RunConfig, here: Facts, nodes: Sequence[Facts], prediction: Prediction, actors: int
) -> list[Finding]:
    """Everything that rl-doctor has to say.

    Args:
        config: the run.
        here: the machine that the learner will be on.
        nodes: all machines of the cluster, or this one alone.
        prediction: what the run will take.
        actors: actor processes.
    """
    return [
        *versions(here, nodes),
        processors(config, here, nodes, actors),
        *learners(config, nodes, prediction),
        *slow_environment(config, prediction, nodes, actors),
        threads(here, actors),
        *(memory(node, share_of(prediction, node, here, nodes)) for node in nodes),
        *(shared_memory(config, node, prediction) for node in nodes),
        *(open_files(node, actors) for node in nodes),
        *(temporary_disk(node) for node in nodes),
        run_disk(config, prediction),
        ports(config, here),
        home(),
        token(config),
    ]


def versions(here: Facts, nodes: Sequence[Facts]) -> list[Finding]:
    """Whether all nodes run the same Python and packages, to the last digit."""
    findings: list[Finding] = []
    for name in ("python", *here.versions):
        of = {node.name: node.python if name == "python" else node.versions.get(name) for node in nodes}
        own = here.python if name == "python" else here.versions[name]
        other = [f"{version} on {node}" for node, version in of.items() if version != own]
        if own is None:
            findings.append(Finding(name, "not installed", "problem", f"pip install -c constraints.txt {name}"))
        elif other:
            advice = "one image, or one constraints.txt, for all nodes (docs/tutorials/cluster.md)"
            findings.append(Finding(name, f"{own} here, {', '.join(other)}", "problem", advice))
        else:
            findings.append(Finding(name, own, "ok"))
    return findings


def processors(config: RunConfig, here: Facts, nodes: Sequence[Facts], actors: int) -> Finding:
    """Whether there is a core for every actor, and the GPU that was asked for."""
    cores = sum(node.cores for node in nodes)
    gpus = f", {len(here.gpus)} x {here.gpus[0]}" if here.gpus else ", no GPU"
    found = f"{cores} cores on {len(nodes)} machine(s){gpus}"
    wanted = actors * config.actor_cpus
    if wanted > cores:
        verdict: Verdict = "problem" if config.ray_address else "warning"
        why = "the others wait for ever" if config.ray_address else "they take turns"
        return Finding("processors", f"{found} for {actors} actors", verdict, f"--num-actors {cores}: {why}")
    return Finding("processors", f"{found} for {actors} actors", "ok")


def learners(config: RunConfig, nodes: Sequence[Facts], prediction: Prediction) -> list[Finding]:
    """Whether there is a CPU for every additional learner beside the actors', and what is expected of them."""
    if config.num_learners == 1:
        return []
    cores, actors = sum(node.cores for node in nodes), (config.fixed_actors or 1) * config.actor_cpus
    part = (
        f"{config.share_envs} environments of an update each, {size(4 * prediction.parameters)} of gradient exchanged"
    )
    if config.population:
        part = f"{-(-config.population // config.num_learners)} members each at most"
    found = f"{config.num_learners}: {part}"
    if config.num_learners - 1 + actors > cores:
        verdict: Verdict = "problem" if config.ray_address else "warning"
        room = max(1, int(cores - actors) + 1)
        return [
            Finding("learners", found, verdict, f"--num-learners {room}: each but the first claims a CPU of {cores}")
        ]
    return [Finding("learners", found, "ok")]


def slow_environment(config: RunConfig, prediction: Prediction, nodes: Sequence[Facts], actors: int) -> list[Finding]:
    """Whether --env-workers pays: a slow step, and a core more for each actor."""
    free = min(sum(node.cores for node in nodes) // actors, config.actor_envs)
    if config.env_workers > 1 or free < 2 or prediction.env_seconds < SLOW_STEP or not takes_workers(config.env):
        return []
    found = f"{1000 * prediction.env_seconds:.2g} ms per step, {config.actor_envs} environments one after the other"
    return [Finding("environment", found, "warning", f"--env-workers {free} steps them in {free} processes per actor")]


def threads(here: Facts, actors: int) -> Finding:
    """Whether each actor keeps to one thread."""
    if here.threads not in (None, "1"):
        found = f"OMP_NUM_THREADS = {here.threads}, for each of {actors} actors"
        return Finding("threads", found, "warning", "unset OMP_NUM_THREADS: actors then take one thread each")
    return Finding("threads", "1 per actor", "ok")


def share_of(prediction: Prediction, node: Facts, here: Facts, nodes: Sequence[Facts]) -> int:
    """Bytes of the run on one node: the learner and what it has asked for are here, actors spread over the cores."""
    if len(nodes) == 1:
        return prediction.memory
    own = prediction.learner + prediction.object_store
    share = (prediction.memory - own) * node.cores // max(1, sum(each.cores for each in nodes))
    return share + (own if node.name == here.name else 0)


def memory(node: Facts, needed: int) -> Finding:
    """Whether the processes fit."""
    found = f"{size(node.memory)} free on {node.name}, {size(needed)} needed"
    if needed > MEMORY_LIMIT * node.memory:
        return Finding("memory", found, "problem", LESS)
    return Finding("memory", found, "ok")


def shared_memory(config: RunConfig, node: Facts, prediction: Prediction) -> Finding:
    """Whether unrolls can go through memory: Ray falls back to files where /dev/shm is too small."""
    if config.in_process:
        return Finding("shared memory", "not used with --local", "ok")
    needed = max(prediction.object_store, 0 if config.ray_address else OBJECT_STORE_BYTES)
    found = f"{size(node.shared_memory)} free in /dev/shm of {node.name}, {size(needed)} needed"
    if prediction.object_store > OBJECT_STORE_BYTES and not config.ray_address:
        return Finding("shared memory", f"{found}, {size(OBJECT_STORE_BYTES)} allowed", "problem", LESS)
    if node.shared_memory < needed:
        gigabytes = max(2, round(1.5 * needed / 2**30))
        return Finding("shared memory", found, "warning", f"docker run --shm-size={gigabytes}g, or Ray uses slow files")
    return Finding("shared memory", found, "ok")


def open_files(node: Facts, actors: int) -> Finding:
    """Whether Ray may open its sockets."""
    needed = FILES + FILES_PER_ACTOR * actors
    found = f"{node.files:,} allowed on {node.name}, {needed:,} needed"
    if node.files < needed:
        return Finding("open files", found, "problem", "ulimit -n 65536, or nofile in /etc/security/limits.conf")
    return Finding("open files", found, "ok")


def temporary_disk(node: Facts) -> Finding:
    """Whether Ray has room for its logs and for objects put aside."""
    found = f"{size(node.temporary)} free for temporary files on {node.name}, {node.temporary_used:.0%} taken"
    if node.temporary < 2**30 or node.temporary_used > SPILL_LIMIT:
        return Finding("temporary disk", found, "warning", "make room, or set RAY_TMPDIR to a larger disk")
    return Finding("temporary disk", found, "ok")


def run_disk(config: RunConfig, prediction: Prediction) -> Finding:
    """Whether the checkpoints fit, and can be written."""
    place = Path(config.run_dir or "runs").absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"{size(free)} free under {place}, {size(prediction.disk)} for checkpoints"
    if not os.access(place, os.W_OK):
        return Finding("run directory", f"{place} cannot be written", "problem", "another --run-dir")
    if free < prediction.disk + 2**28:
        return Finding("run directory", found, "problem", "another --run-dir, or fewer --keep-checkpoints")
    return Finding("run directory", found, "ok")


def ports(config: RunConfig, here: Facts) -> Finding:
    """Which of the usual ports are taken; only a cluster's head needs them."""
    taken = [f"{port} ({PORTS[port]})" for port in here.taken_ports]
    if taken and config.ray_address is None:
        advice = "--ray-address auto, if it is your cluster; a private Ray uses other ports"
        return Finding("ports", f"taken: {', '.join(taken)}", "warning" if 6379 in here.taken_ports else "ok", advice)
    return Finding("ports", f"taken: {', '.join(taken)}" if taken else "6006, 6379 and 8265 are free", "ok")


def home() -> Finding:
    """Whether tokens and caches can be kept in the home directory."""
    if found := writable_home():
        return Finding("home directory", str(found), "ok")
    try:
        instead = f"caches are under {cache_folder()}"
    except OSError as problem:
        instead = f"nothing is cached ({problem})"
    advice = f"HOME=DIR, a directory that you can write; {instead}"
    return Finding("home directory", f"{os.path.expanduser('~')} cannot be written", "warning", advice)


def token(config: RunConfig) -> Finding:
    """Whether Ray will ask for its token, and whether others can read it."""
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        found = f"RAY_AUTH_MODE = {os.environ['RAY_AUTH_MODE']}"
        return Finding("token", found, "warning", "unset RAY_AUTH_MODE: anyone in the network can run code as you")
    file = token_file()
    if "RAY_AUTH_TOKEN" not in os.environ and not token_is_kept():
        found = f"{file} cannot be read or written"
        if config.ray_address:
            return Finding("token", found, "problem", "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, as on the cluster's head")
        return Finding("token", f"{found}; each private Ray gets another one", "ok")
    if os.access(file, os.R_OK) and file.stat().st_mode & 0o077:
        return Finding("token", f"{file} can be read by others", "warning", f"chmod 600 {file}")
    return Finding("token", "asked for", "ok")


def size(number: float) -> str:
    """Bytes for a person."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"
