"""`rl-probe`: train a memory core on a supervised task and test it."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

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
from .run import STOPPED, ProbeRun

_HELP = """Train a memory core on a supervised task and test it on new data.

rl-probe TASK [flags]   one core on one task
rl-probe --list         all tasks, with chance and published results
rl-probe --resume RUN   resume a run; --minutes and --updates may increase"""


def main(arguments: Sequence[str]) -> int:
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
    if not arguments or arguments[0].startswith("-"):
        missing = not {"--help", "-h"} & set(arguments)
        refuse(missing, "the task is missing; expected: rl-probe TASK or rl-probe --list")
        return parse(ProbeConfig, arguments, "rl-probe", _HELP)
    with user_errors():
        default = recipe(arguments[0], value_of("--core", arguments) or ProbeConfig.core)
    return parse(ProbeConfig, arguments[1:], "rl-probe", _HELP, default=default, other_flags=("--list", "--resume"))


def resumed(directory: RunDirectory, arguments: Sequence[str]) -> ProbeConfig:
    """Return a run's configuration, with changes to settings that may change on resume."""
    with user_errors(f"{directory.path / 'config.toml'} is not the configuration of a probe"):
        old: ProbeConfig = from_dict(ProbeConfig, directory.config())
    new = parse(ProbeConfig, arguments, "rl-probe", _HELP, default=old, other_flags=("--resume",))
    allowed = sorted(declared(new, "resumable"))
    for name, before, after in differences(old, new):
        message = f"{directory.path} was trained with {name} = {before!r}, not {after!r}"
        refuse(name not in allowed, f"{message}; --resume can change: {', '.join(allowed)}")
    return new


def probe(config: ProbeConfig, directory: RunDirectory | None) -> int:
    """Train, test and print the result with chance and the published value, in a new or an existing run directory."""
    prepare_process(1)
    show = partial(make_console().print, highlight=False, soft_wrap=True)
    run = ProbeRun(config, show)
    run.restore(directory)  # before a directory is created, which a mistake should not leave
    if directory is None:
        name = f"{config.task}-{config.core}".replace("/", "-").replace(":", "-")
        directory = RunDirectory.create(config.run_dir, to_dict(config), name=name)
    else:
        directory.rewrite_config(to_dict(config))
    with directory, StopFlag() as stop:
        reason = run.train(directory, stop)
        if reason != "done":
            show(f"{STOPPED} ({reason}); resume with: rl-probe --resume {shlex.quote(str(directory.path))}")
            return 0
        result = run.result(directory)
    show(
        f"{result['task']} with {result['core']} ({result['parameters']:,} parameters in the core): "
        f"{result['updates']:,} updates in {result['minutes']:.1f} min, {result['ms_per_update']:.1f} ms each"
    )
    if result["skipped"]:
        show(f"  {result['skipped']:,} updates were skipped: their loss was not finite (try a smaller --lr)")
    for test in result["tests"]:
        show(
            f"  {test['test'] or 'fresh data':<18} {test['accuracy']:7.2%} correct "
            f"({test['low']:.1%}..{test['high']:.1%}), {test['perfect']:.1%} of sequences without an error"
        )
    show(f"  chance     {result['chance']:7.2%}")
    show(f"  published  {result['published']}")
    show(f"  directory  {directory.path}")
    return 0


def list_tasks(console: Console) -> None:
    columns = ("task", "source", "question", "chance", "published", "--task-args")
    table = Table(*(Column(name, overflow="fold") for name in columns), box=None, pad_edge=False)
    for name, entry in TASKS.items():
        fixed = set(find_task(name)[1]) - {"delay", "pairs"}
        parameters = " ".join(key for key in task_parameters(entry) if key not in fixed)
        names = f"{name}\n{name}-twin" if entry.twin else name
        table.add_row(names, entry.family, entry.about, f"{make_task(name, 1).chance:.1%}", entry.published, parameters)
    console.print(table)
