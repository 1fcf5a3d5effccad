"""`rl-train`: train an agent with memory, from a command line to a run directory."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.errors import refuse
from ...base.processes import leave_at_once
from ...base.stop_flag import StopFlag
from ..config.command_line import DRY_RUN, LIST, TRUST, dashed, make_console, run_command, value_of, without

if TYPE_CHECKING:
    from ..api.training import Outcome
    from ..config.run_config import RunConfig
    from ..runs.directory import RunDirectory

# Torch and Ray take seconds to import. The functions below import them after a first message to the user.


def main(arguments: Sequence[str], stop: StopFlag | None = None) -> int:
    """Start or resume a run according to the arguments; return the exit code."""
    stop, arguments = stop or StopFlag.of_a_command(), dashed(arguments)
    if LIST in arguments:
        from .listing import show

        show(make_console())
        return 0
    from ..api.training import refuse_taken
    from ..config.run_flags import parse_run
    from ..config.urls import is_url
    from ..runs.directory import RunDirectory
    from ..runs.resume import resumed_by_words
    from ..trials.command import train_several, trains_several
    from .supervisor import supervise

    if DRY_RUN in arguments:
        refuse(trains_several(arguments), f"{DRY_RUN} has no effect with several runs; allowed: one run")
        return dry_run([argument for argument in arguments if argument != DRY_RUN])
    if trains_several(arguments):
        return train_several(arguments, stop)
    resume, restarts = value_of("--resume", arguments), value_of("--restarts", arguments)
    wrong = restarts is not None and not (restarts.isdecimal() and int(restarts))
    refuse(wrong, f"--restarts is {restarts!r}; allowed: whole numbers, at least 1")
    if resume is not None and is_url(resume):
        from ..runs.mirror import fetch  # once: restarts resume from this machine's copy

        resume = str(fetch(resume, value_of("--run-dir", arguments)))
        arguments = [*without(arguments, ("--resume", "--run-dir")), "--resume", resume]
    if restarts is not None:
        return supervise(without(arguments, ("--restarts",)), int(restarts))
    trust, arguments = TRUST in arguments, [argument for argument in arguments if argument != TRUST]
    if resume is None:
        config = parse_run(arguments, env_required=True)
        refuse_taken(config.checkpoint_url)
        return run_training(config, None, stop)
    with RunDirectory.open(Path(resume)) as directory:
        config = resumed_by_words(directory, without(arguments, ("--resume",)))
        return run_training(config, directory, stop, trust)


def dry_run(arguments: Sequence[str]) -> int:
    """Check the configuration for these arguments as for a run and print it; return the exit code."""

    from ..api.training import make_agents
    from ..config.device import find_device
    from ..config.run_flags import parse_run
    from ..config.settings.plain import to_dict
    from ..runs.directory import as_toml

    conflict = next((flag for flag in ("--resume", "--restarts") if value_of(flag, arguments) is not None), None)
    refuse(conflict, f"{DRY_RUN} has no effect with {conflict}; allowed: one of them")
    config = parse_run(arguments, env_required=True)
    make_agents(config, config.factory(), find_device(config.device, config.num_learners))
    print(as_toml(to_dict(config)).decode(), end="")
    return 0


def run_training(config: "RunConfig", directory: "RunDirectory | None", stop: StopFlag, trust: bool = False) -> int:
    """Prepare this process and train in it; return the exit code."""
    from ...agents.process import prepare_process
    from ..api.training import train

    prepare_process(1)

    def report(outcome: "Outcome") -> None:
        if outcome.failure and not isinstance(outcome.failure, KeyboardInterrupt):
            print(f"rl-train: {outcome.failure}", file=sys.stderr)
        print(farewell(config, outcome), flush=True)

    return train(config, directory, stop, at_end=report, trust=trust).exit_code


def farewell(config: "RunConfig", outcome: "Outcome") -> str:
    """Describe the outcome and the commands to run next."""
    from ...base.processes import shell_command
    from ...envs.registration import can_draw
    from ..runs.directory import resume_command

    path, unsaved = outcome.path, outcome.unsaved
    run, resume = shlex.quote(str(path)), resume_command(str(path))
    advice = f"continue with: {resume}"
    if isinstance(outcome.failure, KeyboardInterrupt):
        return f"interrupted in an update, which is lost; {advice}"
    if outcome.failure:
        return advice
    if not outcome.began or path is None:
        return f"stopped ({outcome.reason}) before training began" + (f"; {advice}" if path else "")
    lost = f"the last {unsaved:,} of them are not in any checkpoint of {path}"
    storage = lost if unsaved else f"everything is in {path}"
    ended = "finished" if outcome.reason == "done" else f"stopped ({outcome.reason})"
    lines = [f"{ended} after {outcome.steps:,} steps; {storage}"]
    if outcome.result:
        lines.append(f"  result          {outcome.result}")
    if outcome.reason != "done" or unsaved:
        lines.append(f"  continue        {resume}")
    gif = f" --gif {shlex.quote(f'{path}/episode.gif')}" if can_draw(config.env) else ""
    lines.append(f"  evaluate        {shell_command('rl-eval')} {run} --episodes 1000{gif}")
    lines.append(f"  curves          {shell_command('tensorboard')} --logdir {shlex.quote(str(path.parent))}")
    if config.population:
        lines.append(f"  population      {shell_command('rl-population')} {run}")
    return "\n".join(lines)


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `rl-train`."""

    def begin(arguments: Sequence[str]) -> int:
        if sys.stdout.isatty() and not {"--help", LIST, DRY_RUN} & set(arguments):
            print("starting: loading torch takes a few seconds", flush=True)
        with StopFlag.of_a_command() as stop:  # signals during the import of torch are also handled
            return main(arguments, stop)

    try:
        run_command("rl-train", begin, arguments)
    except SystemExit as end:
        if arguments is None and "ray" in sys.modules:  # threads of a stopped Ray may abort a process that cleans up
            leave_at_once(end.code if isinstance(end.code, int) else 1)
        raise
