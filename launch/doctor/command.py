"""`rl-doctor`: problems of a machine or cluster for a run, the resources that the run needs, and advice."""

import json
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...agents.process import prepare_process
from ...base.errors import EngramError, file_errors, library_errors, user_errors
from ...base.messages import size_in_words
from ..config.command_line import make_console
from ..config.run_config import check_memory
from ..config.run_flags import parse_run
from ..metrics.rows import read_rows
from ..runs.directory import RunDirectory
from ..runs.trained import run_config
from .checks import Estimate, Facts, Finding, Verdict, estimate, examine, look
from .symptoms import symptoms

NODE_TIMEOUT = 120.0  # Seconds in which a node of the cluster must respond
RESOURCES = {"cores": "CPU", "learners": "learner"}  # Ray resources of a node, by the field of Facts
_COLORS = {"ok": "green", "warning": "yellow", "problem": "red"}

_HELP = """usage: rl-doctor [--json] [flags of rl-train]
       rl-doctor RUN [--json]

With a run directory: reads the run's metrics and reports symptoms, each with the flag that helps. Exit code 0 if
there are none, else 1.

Without one:

Examines this machine, or with --ray-address every node of a cluster: versions, CPUs, memory, shared memory,
limits, disk, token. Estimates the memory, the object store and the checkpoints of the run with these flags of
rl-train (rl-train --help), and recommends changes. rl-bench measures the steps per second.

  --json        print one JSON object instead of tables

Exit code 0 if the run can start, 1 if there is a problem."""


def main(arguments: Sequence[str]) -> int:
    """Examine according to the arguments; return the exit code."""
    if {"-h", "--help"} & set(arguments):
        print(_HELP)
        return 0
    if arguments and not arguments[0].startswith("-"):
        return examine_run(arguments[0], arguments[1:])
    config = parse_run([argument for argument in arguments if argument != "--json"], other_flags=("--json",))
    prepare_process(1)
    here = look()
    nodes, lost = cluster(config.ray_address) if config.ray_address else ([here], [])
    cores = sum(node.cores for node in nodes) if not config.local else 1
    actors = config.fixed_actors or max(1, int(cores / config.actor_cpus))
    with user_errors(), library_errors("one actor and one update do not fit in memory", MemoryError):
        with closing((factory := config.factory()).make_batch(num_envs=1)) as batch:
            work = check_memory(config, factory, batch)
        cost = estimate(config, work, actors)  # after the batch is closed: some environments allow only one
    findings = [*lost, *examine(config, here, nodes, cost, actors)]
    if "--json" in arguments:
        print_json(findings, estimate=cost._asdict(), nodes=[node._asdict() for node in nodes])
    else:
        show(findings, cost, make_console())
    return int(worst(findings) == "problem")


def examine_run(path: str, arguments: Sequence[str]) -> int:
    """Report symptoms in a run's metrics, for a population those of every member; return 1 if there are any."""
    if wrong := [argument for argument in arguments if argument != "--json"]:
        raise EngramError(f"{wrong[0]!r} cannot be combined with the run directory {path!r}; allowed there: --json")
    run = RunDirectory.open(path, lock=False)
    config = run_config(run)
    runs = {f"member {i}: ": run.member(i) for i in range(config.population)} or {"": run}
    with file_errors(f"cannot read the metrics of {run.path}"):
        findings = [
            finding._replace(what=prefix + finding.what)
            for prefix, member in runs.items()
            for finding in symptoms(read_rows(member.metrics_file), config)
        ]
    if "--json" in arguments:
        print_json(findings)
    else:
        show_findings(findings, make_console())
    return int(worst(findings) != "ok")


def cluster(address: str) -> tuple[list[Facts], list[Finding]]:
    """Return facts about every node of a cluster, and findings about nodes that did not respond."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from ..cluster.ray_session import start_ray

    start_ray(0, address)
    pending: dict[str, tuple[dict[str, int], Any]] = {}
    for node in ray.nodes():
        if node["Alive"]:
            strategy: Any = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            remote = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(look)
            resources = {field: int(node["Resources"].get(name, 0)) for field, name in RESOURCES.items()}
            pending[node["NodeManagerAddress"]] = resources, remote.remote()
    facts: list[Facts] = []
    lost: list[Finding] = []
    for name, (resources, ref) in pending.items():
        try:
            # Ray may offer fewer cores than a node has, such as none on a GPU head node.
            node_facts: Any = ray.get(ref, timeout=NODE_TIMEOUT)
            facts.append(node_facts._replace(**resources))
        except (GetTimeoutError, RayError) as problem:
            last = str(problem).strip().splitlines()[-1]
            advice = "install the same version of engram there (docs/tutorials/cluster.md)"
            lost.append(Finding(f"node {name}", last, "problem", advice))
    ray.shutdown()
    return facts, lost


def worst(findings: Sequence[Finding]) -> Verdict:
    """The worst verdict."""
    return max((finding.verdict for finding in findings), key=list(_COLORS).index)


def print_json(findings: Sequence[Finding], **others: Any) -> None:
    """Print the findings and `others` as one JSON object."""
    facts = {"verdict": worst(findings), "findings": [finding._asdict() for finding in findings]}
    print(json.dumps(facts | others, indent=1))


def show(findings: Sequence[Finding], cost: Estimate, console: Console) -> None:
    """Print two tables: the findings and the estimate."""
    show_findings(findings, console)
    rows = Table("this run needs", "", box=None)
    rows.add_row("parameters", f"{cost.parameters:,}")
    rows.add_row("one unroll", size_in_words(cost.unroll))
    rows.add_row("object store", f"at most {size_in_words(cost.object_store)}")
    rows.add_row("memory", f"about {size_in_words(cost.memory)} in total on all machines")
    rows.add_row("checkpoints", f"at most {size_in_words(cost.disk)}")
    console.print()
    console.print(rows)


def show_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print a table of findings."""
    table = Table("check", "result", "", "recommendation", box=None)
    for what, value, verdict, advice in findings:
        table.add_row(what, value, Text(verdict, _COLORS[verdict]), advice)
    console.print(table)
