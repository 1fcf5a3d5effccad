"""`rl-probe`: train a memory core on a supervised task and test it."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...agents.process import prepare_process
from ...base.errors import refuse, user_errors
from ...base.settings import declared
from ..run.command_line import dashed, make_console, parse, run_command, value_of, without
from ..run.run_directory import RunDirectory
from ..run.settings.plain import differences, from_dict, to_dict
from ..run.stop_flag import StopFlag
from .config import ProbeConfig, recipe
from .listing import list_tasks, say_result
from .run import STOPPED, ProbeRun, start_from

_HELP = """Train a memory core on a supervised task and test it on new data.

rl-probe TASK [flags]   one core on one task
rl-probe --list         all tasks, with chance and published numbers
rl-probe --resume RUN   resume a run; --minutes and --updates may increase"""

MAY_CHANGE = frozenset(declared(ProbeConfig(), "resumable"))  # Settings allowed with --resume


def main(arguments: Sequence[str]) -> int:
    """Probe according to the arguments; returns the exit code."""
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
    """The configuration of the arguments; the first is the task."""
    if not arguments or arguments[0].startswith("-"):
        refuse(not {"--help", "-h"} & set(arguments), "which task? rl-probe TASK, or rl-probe --list to see them all")
        return parse(ProbeConfig, arguments, "rl-probe", _HELP)
    with user_errors():
        default = recipe(arguments[0], value_of("--core", arguments) or ProbeConfig.core)
    return _until(
        parse(ProbeConfig, arguments[1:], "rl-probe", _HELP, default=default, other_flags=("--list", "--resume"))
    )


def _until(config: ProbeConfig) -> ProbeConfig:
    """Set the minutes to 0 if there is a number of updates, which overrides them."""
    return replace(config, minutes=0.0) if config.updates else config


def resumed(directory: RunDirectory, arguments: Sequence[str]) -> ProbeConfig:
    """A run's configuration with the settings that may change on resuming it."""
    with user_errors(f"{directory.path / 'config.toml'} is not of a probe"):
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
        start_from(config.start_from, run.learner)  # a mistake creates no directory
        directory = RunDirectory.create(config.run_dir, to_dict(config), name=config.name)
    with directory:
        run.begin(directory)
        if old:
            directory.rewrite_config(to_dict(config))
        with StopFlag() as stop:
            reason = run.train(stop)
        if reason != "done":
            console.print(
                f"{STOPPED} ({reason}); continue with: rl-probe --resume {shlex.quote(str(directory.path))}",
                soft_wrap=True,
            )
            return 0
        say_result(run.result(), console)
        console.print(f"  all of it  {directory.path}", highlight=False, soft_wrap=True)
    return 0


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `rl-probe`."""
    run_command("rl-probe", main, arguments)
