"""`rl-probe`: train a memory core on a supervised task and test it."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from ...agents.process import prepare_process
from ...base.errors import refuse, user_errors
from ...base.settings import declared
from ...base.stop_flag import StopFlag
from ...envs.tasks.registry import TASKS, find_task, make_task, task_parameters
from ..config.command_line import dashed, make_console, parse, value_of, without
from ..config.settings.plain import differences, from_dict, to_dict
from ..runs.directory import RunDirectory
from .config import ProbeConfig, recipe
from .run import STOPPED, ProbeRun, start_from

_HELP = """Train a memory core on a supervised task and test it on new data.

rl-probe TASK [flags]   one core on one task
rl-probe --list         all tasks, with chance and published results
rl-probe --resume RUN   resume a run; --minutes and --updates may increase"""

MAY_CHANGE = frozenset(declared(ProbeConfig(), "resumable"))  # Settings allowed with --resume


def main(arguments: Sequence[str]) -> int:
    """Probe according to the arguments; return the exit code."""
    argv = dashed(arguments)
    if argv[:1] == ["--list"]:
        list_tasks(make_console())
        return 0
    resume = value_of("--resume", argv)
    if resume is not None:
        with RunDirectory.open(Path(resume)) as directory:
            return probe(resumed(directory, without(argv, ("--resume",))), directory)
    return probe(parsed(argv), None)


def parsed(arguments: Sequence[str]) -> ProbeConfig:
    """Parse the configuration; the first argument is the task."""
    if not arguments or arguments[0].startswith("-"):
        missing = not {"--help", "-h"} & set(arguments)
        refuse(missing, "the task is missing; expected: rl-probe TASK or rl-probe --list")
        return parse(ProbeConfig, arguments, "rl-probe", _HELP)
    with user_errors():
        default = recipe(arguments[0], value_of("--core", arguments) or ProbeConfig.core)
    config = parse(ProbeConfig, arguments[1:], "rl-probe", _HELP, default=default, other_flags=("--list", "--resume"))
    return _until(config)


def _until(config: ProbeConfig) -> ProbeConfig:
    """Set the minutes to 0 if the number of updates is set, which overrides them."""
    return replace(config, minutes=0.0) if config.updates else config


def resumed(directory: RunDirectory, arguments: Sequence[str]) -> ProbeConfig:
    """Return a run's configuration, with changes to settings that may change on resume."""
    with user_errors(f"{directory.path / 'config.toml'} is not the configuration of a probe"):
        old: ProbeConfig = from_dict(ProbeConfig, directory.config())
    new = _until(parse(ProbeConfig, arguments, "rl-probe", _HELP, default=old, other_flags=("--resume",)))
    for name, before, after in differences(old, new):
        refuse(
            name not in MAY_CHANGE,
            f"{directory.path} was trained with {name} = {before!r}, not {after!r}; "
            f"--resume can change: {', '.join(sorted(MAY_CHANGE))}",
        )
    return new


def probe(config: ProbeConfig, directory: RunDirectory | None) -> int:
    """Train, test and print the result, in a new or an existing run directory."""
    prepare_process(1)
    console = make_console()
    run = ProbeRun(config, lambda line: console.print(line, highlight=False, soft_wrap=True))
    old = directory
    if directory is None:
        start_from(config.start_from, run.learner)  # before a directory is created, which a mistake should not leave
        directory = RunDirectory.create(config.run_dir, to_dict(config), name=config.name)
    with directory:
        run.begin(directory)
        if old:
            directory.rewrite_config(to_dict(config))
        with StopFlag() as stop:
            reason = run.train(stop)
        if reason != "done":
            resume = f"rl-probe --resume {shlex.quote(str(directory.path))}"
            console.print(f"{STOPPED} ({reason}); resume with: {resume}", soft_wrap=True)
            return 0
        for line in described(run.result(), directory.path):
            console.print(line, highlight=False, soft_wrap=True)
    return 0


def described(result: dict[str, Any], path: Path) -> list[str]:
    """Describe the result of a probe in lines, with chance and the published value."""
    lines = [
        f"{result['task']} with {result['core']} ({result['parameters']:,} parameters in the core): "
        f"{result['updates']:,} updates in {result['minutes']:.1f} min, {result['ms_per_update']:.1f} ms each"
    ]
    if result["skipped"]:
        lines.append(f"  {result['skipped']:,} updates were skipped: their loss was not finite (try a smaller --lr)")
    for test in result["tests"]:
        lines.append(
            f"  {test['test'] or 'fresh data':<18} {test['accuracy']:7.2%} correct "
            f"({test['low']:.1%}..{test['high']:.1%}), {test['perfect']:.1%} of sequences without an error"
        )
    return [
        *lines,
        f"  chance     {result['chance']:7.2%}",
        f"  published  {result['published']}",
        f"  directory  {path}",
    ]


def list_tasks(console: Console) -> None:
    """Print every task with its question, chance, published results and parameters."""
    columns = ("task", "source", "question", "chance", "published", "--task-args")
    table = Table(*(Column(name, overflow="fold") for name in columns), box=None, pad_edge=False)
    for name, entry in TASKS.items():
        fixed = set(find_task(name)[1]) - {"delay", "pairs"}
        parameters = " ".join(key for key in task_parameters(entry) if key not in fixed)
        names = f"{name}\n{name}-twin" if entry.twin else name
        table.add_row(names, entry.family, entry.about, f"{make_task(name, 1).chance:.1%}", entry.published, parameters)
    console.print(table)
