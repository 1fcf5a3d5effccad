"""`rl-doctor`: problems of a machine or cluster for a run, the resources that the run needs, and advice.

For a run directory: symptoms in the metrics. A rule examines the second half of the rows, the run's recent state, and
reports nothing if its metrics are missing.
"""

import json
import math
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median, variance
from typing import Any, Literal, NamedTuple

import psutil
import torch
from rich.table import Table
from rich.text import Text

from ...actors.packed import nbytes
from ...agents.process import prepare_process
from ...agents.values import flatten
from ...base.errors import EngramError, file_errors, library_errors, size_in_words, user_errors
from ...base.processes import memory as memory_here
from ...base.processes import num_cores
from ..config.command_line import make_console
from ..config.run_config import RunConfig, check_memory
from ..config.run_flags import parse_run
from ..metrics.provenance import machine
from ..metrics.rows import Row, read_log
from ..runs.directory import RunDirectory
from ..runs.trained import run_config

RAY_BYTES = 400 * 2**20  # Bytes of Ray's own processes on one machine
TRAINING_COPIES, CHECKPOINT_COPIES = 4, 3  # Of the weights: weights, at most two moments and, in training, gradients
MEMORY_LIMIT = 0.95  # Fraction of a machine's memory above which Ray kills processes
LESS = "fewer --num-actors or --envs-per-actor, or a shorter --unroll-length"
NODE_TIMEOUT = 120.0  # Seconds in which a node of the cluster must respond
FEWEST = 8  # Minimum number of rows to judge a run
DROWNED = 10.0  # Ratio of the value loss to the other losses above which it dominates them
GONE, FLAT = 0.05, 0.97
"""Fractions of the entropy at the start: below the first it has collapsed, above the second it has not decreased."""
CLIPPED = 0.95  # Fraction of rows with a clipped gradient that counts as every row
OLD = 2.0  # Mean age of the acting weights, in updates, above which they are too old
SOLVED = 0.9  # Solved rate above which a low entropy is no symptom
WAITS = 0.5  # Fraction of time that the learner waits above which more actors help

Verdict = Literal["ok", "warning", "problem"]

_COLORS = {"ok": "green", "warning": "yellow", "problem": "red"}
_HELP = """usage: rl-doctor [--json] [flags of rl-train]
       rl-doctor RUN [--json]

With a run directory: reads the run's metrics and reports symptoms, each with the flag that helps. Exit code 0 if
there are none, else 1.

Without one: examines this machine, or with --ray-address every node of a cluster (CPUs, memory, disk, GPU), estimates
the memory, the object store in /dev/shm and the checkpoints of a run with these flags of rl-train, and recommends
changes. Exit code 0 if the run can start, 1 if there is a problem.

  --json        print one JSON object instead of tables"""


class Finding(NamedTuple):
    what: str
    found: str
    verdict: Verdict
    advice: str = ""


class Estimate(NamedTuple):
    """Cost of a run in bytes."""

    unroll: int  # One unroll of one actor
    object_store: int  # Maximum size of unrolls and weights in flight; 0 with --local
    memory: int  # Total of all processes and the object store, on all machines
    disk: int  # Checkpoints


class Facts(NamedTuple):
    """Facts about one machine, as seen by a process on it."""

    name: str
    cores: int  # Cores that this run's processes may use
    gpus: list[str]
    memory: int  # Bytes of free memory, within the container's limit


def estimate(config: RunConfig, work: int, actors: int) -> Estimate:
    """Estimate the cost of a run from a few steps of one environment; `work` is the result of `check_memory`."""
    sizes: list[int] = []
    for length in (1, 2):
        with closing(replace(config.factory(), num_envs=1, unroll_length=length).make_actor(0)) as actor:
            sizes.append(nbytes(actor.unroll()))
            weights = flatten(actor.agent).nbytes
    unroll = config.actor_envs * (sizes[0] + (config.unroll_length - 1) * (sizes[1] - sizes[0]))
    own = psutil.Process().memory_full_info()
    store, processes = 0, 0
    if not config.in_process:
        ahead = config.lag_bound + 1
        unrolls = actors if config.synchronous else -(-ahead * config.columns // config.actor_envs)
        store = config.num_members * (unrolls * unroll + (1 + ahead) * weights)
        processes = RAY_BYTES + actors * (own.uss + 2 * unroll)
    memory = own.rss + work + TRAINING_COPIES * weights * config.num_members + processes + store
    disk = (config.keep_checkpoints + 2) * CHECKPOINT_COPIES * weights * config.num_members
    return Estimate(unroll, store, memory, disk)


def look() -> Facts:
    return Facts(socket.gethostname(), num_cores(), machine()["gpus"], memory_here().free)


def examine(config: RunConfig, nodes: Sequence[Facts], cost: Estimate, actors: int) -> list[Finding]:
    """Return the findings about `nodes`, all machines of the run."""
    memory, cores = sum(node.memory for node in nodes), sum(node.cores for node in nodes)
    value = f"{size_in_words(memory)} free, {size_in_words(cost.memory)} needed"
    findings = [_if(cost.memory > MEMORY_LIMIT * memory, "memory", "problem", value, LESS)]
    gpus, full = sum(len(node.gpus) for node in nodes), actors * config.actor_cpus > cores
    value = f"{cores} cores and {gpus} GPUs on {len(nodes)} machine(s) for {actors} actors"
    verdict, effect = ("problem", "the others wait forever") if config.ray_address else ("warning", "they take turns")
    advice = f"--num-actors {max(1, int(cores / config.actor_cpus))}: {effect}"
    findings.append(_if(full, "CPUs", verdict, value, advice))
    folder = Path(config.run_dir or "runs").absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    value = f"{size_in_words(free)} free under {folder}, {size_in_words(cost.disk)} for checkpoints"
    advice = "another --run-dir, or fewer --keep-checkpoints"
    findings.append(_if(free < cost.disk + 2**28, "run directory", "problem", value, advice))
    if not torch.cuda.is_available() and Path("/proc/driver/nvidia/version").exists():
        value = f"torch {torch.__version__} does not use this machine's GPU"
        findings.append(Finding("GPU", value, "warning", "install torch for the GPU's driver, or --device cpu"))
    return findings


def _if(wrong: bool, what: str, verdict: Verdict, value: str, advice: str) -> Finding:
    return Finding(what, value, verdict, advice) if wrong else Finding(what, value, "ok")


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(_HELP)
        return 0
    if arguments and not arguments[0].startswith("-"):
        findings, others, passing = run_findings(arguments[0], arguments[1:]), {}, ("ok",)
    else:
        config = parse_run([argument for argument in arguments if argument != "--json"], other_flags=("--json",))
        prepare_process(1)
        nodes = cluster(config.ray_address) if config.ray_address else [look()]
        cores = sum(node.cores for node in nodes) if not config.local else 1
        actors = config.fixed_actors or max(1, int(cores / config.actor_cpus))
        with user_errors(), library_errors("one actor and one update do not fit in memory", MemoryError):
            with closing((factory := config.factory()).make_batch(num_envs=1)) as batch:
                work = check_memory(config, factory, batch)
            cost = estimate(config, work, actors)  # after the batch is closed: some environments allow only one
        findings = examine(config, nodes, cost, actors)
        others: dict[str, Any] = {"estimate": cost._asdict(), "nodes": [node._asdict() for node in nodes]}
        passing = ("ok", "warning")
    worst = max((finding.verdict for finding in findings), key=list(_COLORS).index)
    if "--json" in arguments:
        facts = {"verdict": worst, "findings": [finding._asdict() for finding in findings]}
        print(json.dumps(facts | others, indent=1))
    else:
        show(findings, others.get("estimate", {}))
    return int(worst not in passing)


def run_findings(path: str, arguments: Sequence[str]) -> list[Finding]:
    """Return symptoms in a run's metrics, for a population those of every member."""
    if wrong := [argument for argument in arguments if argument != "--json"]:
        raise EngramError(f"{wrong[0]!r} cannot be combined with the run directory {path!r}; allowed there: --json")
    run = RunDirectory.open(path, lock=False)
    config = run_config(run)
    runs = {f"member {i}: ": run.member(i) for i in range(config.population)} or {"": run}
    with file_errors(f"cannot read the metrics of {run.path}"):
        return [
            finding._replace(what=prefix + finding.what)
            for prefix, member in runs.items()
            for finding in symptoms(read_log(member.metrics_file), config)
        ]


def cluster(address: str) -> list[Facts]:
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from ..cluster.ray_session import start_ray

    start_ray(0, address)
    facts: list[Facts] = []
    pending: dict[str, tuple[int, Any]] = {}  # By address: the cores that Ray offers, and the facts
    for node in ray.nodes():
        if node["Alive"]:
            strategy: Any = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            remote = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(look)
            pending[node["NodeManagerAddress"]] = int(node["Resources"].get("CPU", 0)), remote.remote()
    for name, (cores, ref) in pending.items():
        with library_errors(f"node {name} has another version of engram, or no connection", GetTimeoutError, RayError):
            node_facts: Any = ray.get(ref, timeout=NODE_TIMEOUT)
        facts.append(node_facts._replace(cores=cores))  # may be none on a GPU head node
    ray.shutdown()
    return facts


def show(findings: Sequence[Finding], cost: dict[str, int]) -> None:
    table = Table("check", "result", "", "recommendation", box=None)
    for what, value, verdict, advice in findings:
        table.add_row(what, value, Text(verdict, _COLORS[verdict]), advice)
    for name, size in cost.items():
        table.add_row(f"{name.replace('_', ' ')} of this run", f"at most {size_in_words(size)}")
    make_console().print(table)


Symptoms = Iterator[tuple[str, str, str]]  # What each is about, the description, and the advice


class Metrics:
    """Rows of metrics, and values of the second half of them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows, self.last = rows, rows[-1]
        self.returns = self.all("episode/return")
        self.quarter = quarter = len(self.returns) // 4
        self.rising = False
        """Whether the mean return of the last quarter exceeds that of the first by twice the standard error of the
        difference."""
        if quarter >= 2:
            first, last = self.returns[:quarter], self.returns[-quarter:]
            error = math.sqrt((variance(first) + variance(last)) / quarter)
            self.rising = fmean(last) - fmean(first) > 2 * error
        self.solved = self.mean("episode/solved") >= SOLVED

    def all(self, name: str) -> list[float]:
        """Values of a metric in all rows that have it."""
        return [row[name] for row in self.rows if name in row]

    def late(self, name: str) -> list[float]:
        """Values of a metric in the second half of the rows."""
        return [row[name] for row in self.rows[len(self.rows) // 2 :] if name in row]

    def mean(self, name: str) -> float:
        """Mean of the late values; 0 without any."""
        return fmean(self.late(name) or [0.0])

    def typical(self, name: str) -> float | None:
        """Median of the absolute late values."""
        return median(map(abs, values)) if (values := self.late(name)) else None


def symptoms(rows: Sequence[Row], config: RunConfig) -> list[Finding]:
    """Return all symptoms, or a single finding if there are none or if it is too early to judge."""
    if len(rows) < FEWEST:
        description = f"{len(rows)} rows of metrics; at least {FEWEST} are needed to judge"
        return [Finding("metrics", description, "ok", "wait, or lower --log-every")]
    metrics = Metrics(rows)
    reported = [symptom for rule in (value_loss, entropy, updates, episodes) for symptom in rule(metrics, config)]
    findings = [Finding(what, description, "warning", advice) for what, description, advice in reported]
    return findings or [Finding("metrics", f"{len(rows)} rows of metrics, no problems found", "ok")]


def value_loss(metrics: Metrics, config: RunConfig) -> Symptoms:
    """Report a value loss that is so large that it dominates learning."""
    value, policy, entropy = (metrics.typical(f"loss/{name}") for name in ("value", "policy", "entropy"))
    if value is None or policy is None or value <= DROWNED * (policy + (entropy or 0.0)):
        return
    norm, most = metrics.typical("learner/grad_norm"), config.learner.max_grad_norm
    if most and norm is not None and norm <= most:
        return  # the clip does not scale the other losses' gradients down
    times = value / max(policy + (entropy or 0.0), 1e-12)
    flags = [] if config.agent.normalize_returns else ["--normalize-returns"]
    if most and norm is not None:
        flags.append(f"--max-grad-norm {2 * norm:.2g}")
    description = f"{value:.3g}, {min(times, 1e6):,.0f} times the sum of policy and entropy loss: it dominates learning"
    yield "value loss", description, ", or ".join([*flags, f"--value-cost {config.learner.value_cost / 20:.2g}"])


def entropy(metrics: Metrics, config: RunConfig) -> Symptoms:
    """Report a policy that is certain of actions with low returns, or as uncertain as at the start."""
    values, cost = metrics.all("policy/entropy"), config.learner.entropy_cost
    if len(values) < FEWEST or metrics.rising:
        return
    quarter = len(values) // 4
    first, last = max(values[:quarter]), median(values[-quarter:])
    if first > 0 and last < GONE * first and not metrics.solved:
        advice = f"--entropy-cost {10 * cost:.2g}" if cost else "--entropy-cost 0.01"
        yield "entropy", f"{last:.3g} nats of {first:.3g}: the policy no longer explores", advice
    elif first > 0 and last > FLAT * first:
        advice = f"--lr {3 * config.learner.lr:.2g}, or --entropy-cost {cost / 5:.2g}"
        yield "entropy", f"{last:.3g} nats, as at the start: the policy does not learn", advice


def updates(metrics: Metrics, config: RunConfig) -> Symptoms:
    """Report gradients that are always clipped, skipped updates, and acting weights much older than the learner's."""
    most, norms = config.learner.max_grad_norm, metrics.late("learner/grad_norm")
    if most and norms and sum(norm > most for norm in norms) >= CLIPPED * len(norms):
        value, prediction = (metrics.typical(f"loss/{name}") or 0.0 for name in ("value", "prediction"))
        cost = "prediction" if prediction > value else "value"
        advice = f"--max-grad-norm {2 * median(norms):.2g}, or a lower --{cost}-cost"
        yield "gradient", f"norm {median(norms):.3g}, clipped to {most:g} at every update", advice
    if count := metrics.last.get("learner/skipped", 0.0):
        advice = f"--lr {config.learner.lr / 3:.2g}, or a lower --max-grad-norm; or {config.env} returned nan"
        yield "updates", f"{count:.0f} skipped because the loss was not finite", advice
    if (mean_lag := metrics.mean("perf/policy_lag")) > OLD:
        yield "policy lag", f"{mean_lag:.1f} updates", "--max-lag 1, or fewer --num-actors"


def episodes(metrics: Metrics, config: RunConfig) -> Symptoms:
    """Report that no episode has ended, a return that has not risen, and a learner that waits most of the time."""
    if not metrics.all("episode/length"):
        steps = metrics.last["step"] / max(config.num_members * config.columns, 1)
        description = f"none has ended in about {steps:,.0f} steps per environment"
        yield "episodes", description, "a step limit: --env-args max_episode_steps=500 (or max_steps)"
    values, quarter = metrics.returns, metrics.quarter
    if len(values) >= FEWEST and not metrics.rising and not metrics.solved:
        description = f"{fmean(values[:quarter]):.3g} at the start, {fmean(values[-quarter:]):.3g} now: flat"
        more = "" if config.agent.prediction_size else "--prediction-size 128, "
        yield "return", description, f"see the other lines; else {more}more steps, or an easier environment first"
    waits = metrics.mean("perf/queue_wait")
    if not config.local and not config.synchronous and waits > WAITS:
        more = "auto" if config.fixed_actors is None else 2 * config.fixed_actors
        yield "learner", f"waits {waits:.0%} of the time", f"--num-actors {more}, if there are cores"
