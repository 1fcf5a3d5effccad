"""`rl-train`: train an agent with memory, from a command line to a run directory."""

import inspect
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from ... import zoo
from ...agents.cores.registry import core_class, core_names
from ...agents.process import prepare_process
from ...base.errors import refuse
from ...base.processes import StopFlag, end_with_parent, shell_command
from ...envs.registration import ENVIRONMENTS, batch_class, can_draw, purpose
from ...learners.algorithms import algorithm_class, algorithm_names
from ..api.training import Outcome, make_agents, train
from ..config.command_line import DRY_RUN, LIST, RL_TRAIN, TRUST, dashed, make_console, value_of, without
from ..config.plain import is_url, to_dict
from ..config.run_config import RunConfig, find_device
from ..config.run_flags import PRESETS, parse_run
from ..runs.directory import CONFIG, RunDirectory, as_toml, new_path, refuse_unusable, resume_command
from ..runs.mirror import fetch, refuse_taken
from ..runs.trained import resumed_by_words
from ..trials.command import train_several, trains_several

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # Seconds before a restart; doubled for each further restart in a row
POLL_SECONDS = 0.1


def main(arguments: Sequence[str], stop: StopFlag | None = None) -> int:
    stop, arguments = stop or StopFlag.of_a_command(), dashed(arguments)
    if LIST in arguments:
        show_names(make_console())
        return 0
    several = trains_several(arguments)
    resume, restarts = value_of("--resume", arguments), value_of("--restarts", arguments)
    if DRY_RUN in arguments:
        conflict = "several runs" if several else "--resume" * bool(resume) or "--restarts" * bool(restarts)
        refuse(conflict, f"{DRY_RUN} has no effect with {conflict}; allowed: one of them")
        return dry_run([argument for argument in arguments if argument != DRY_RUN])
    if several:
        return train_several(arguments, stop)
    wrong = restarts is not None and not (restarts.isdecimal() and int(restarts))
    refuse(wrong, f"--restarts is {restarts!r}; allowed: whole numbers, at least 1")
    if resume is not None and is_url(resume):  # once: restarts resume from this machine's copy
        resume = str(fetch(resume, value_of("--run-dir", arguments)))
        arguments = [*without(arguments, ("--resume", "--run-dir")), "--resume", resume]
    if restarts is not None:
        return supervise(without(arguments, ("--restarts",)), int(restarts), stop)
    trust, arguments = TRUST in arguments, [argument for argument in arguments if argument != TRUST]
    if resume is None:
        config = parse_run(arguments, env_required=True)
        refuse_taken(config.checkpoint_url)
        return run_training(config, None, stop)
    with RunDirectory.open(Path(resume)) as directory:
        config = resumed_by_words(directory, without(arguments, ("--resume",)))
        return run_training(config, directory, stop, trust)


def show_names(console: Console) -> None:
    """Print all names that the command line accepts, with their descriptions."""

    def first_line(thing: type) -> str:
        return (inspect.getdoc(thing) or "").partition("\n")[0]

    folder = Path(__file__).parents[1] / "figures" / "data"
    figures = {file.stem: tomllib.loads(file.read_text("utf-8")) for file in folder.iterdir()}
    environments = {name: ", ".join(preset.environments) for name, preset in PRESETS.items()}
    sections = {
        "environments (--env)": [
            *((name, purpose(batch_class(environment))) for name, environment in ENVIRONMENTS.items()),
            ("NAME-twin", "the same environment, which then needs no memory"),
        ],
        "cores (--core)": [(name, first_line(core_class(name))) for name in core_names()],
        "algorithms (--algorithm)": [(name, first_line(algorithm_class(name))) for name in algorithm_names()],
        "presets (--preset)": [
            ("paper", f"the papers' settings: {environments['paper']}; with the paper's core also its size"),
            ("easy", f"levels that are learned in minutes: {environments['easy']}"),
            ("curriculum", f"the papers' environments, learned in stages: {environments['curriculum']}"),
        ],
        "pairs with a paper's core options": [
            (f"{environment} {core}", " ".join(f"{key}={x}" for key, x in preset["agent"]["core_args"].items()))
            for (environment, core), preset in PRESETS["paper"].cores.items()
        ],
        "figures of papers (rl-reproduce NAME)": [
            (name, f"{data['title']}; {data['paper']}, {data['place']}") for name, data in sorted(figures.items())
        ],
        "trained agents (rl-eval zoo:NAME, --start-from)": [
            (f"zoo:{name}", zoo.facts(name)["env"]) for name in zoo.names()
        ],
    }
    for kind, lines in sections.items():
        columns = Column(no_wrap=True, style="cyan"), Column(overflow="fold")
        table = Table(*columns, title=kind, title_justify="left", title_style="bold", box=None, show_header=False)
        for line in lines:
            table.add_row(*line)
        console.print(table)
        console.print()


def supervise(arguments: Sequence[str], restarts: int, stop: StopFlag) -> int:
    """Train in a child process that is resumed when it dies, at most `restarts` times in a row without a new
    checkpoint; return the last process's exit code. Signals that request a stop are forwarded."""
    if (resumed := value_of("--resume", arguments)) is not None:
        # The same arguments again: a run that dies early has not yet saved the changes.
        return keep_alive(arguments, arguments, Path(resumed), restarts, stop)
    config = parse_run([argument for argument in arguments if argument != TRUST], env_required=True)
    refuse_unusable(config.run_dir)
    run = Path(config.run_dir) if config.run_dir else new_path(config.name)
    first, again = [*without(arguments, ("--run-dir",)), "--run-dir", str(run)], ["--resume", str(run)]
    # Neither is saved: the limit applies to this command, and a URL may contain a secret.
    for flag, value in (("--time-limit", config.time_limit), ("--checkpoint-url", config.checkpoint_url)):
        again += [flag, str(value)] if value else []
    return keep_alive(first, [*again, *[TRUST] * (TRUST in arguments)], run, restarts, stop)


def keep_alive(first: Sequence[str], again: Sequence[str], run: Path, restarts: int, stop: StopFlag) -> int:
    """Run the arguments `first`, and after failures `again`, until no restart is due; return the exit code."""
    in_a_row, reached = 0, newest_step(run)
    with stop:
        while True:
            begun = in_a_row > 0 and (run / CONFIG).exists()
            code = run_child(again if begun else first, stop)
            if code in (0, 2) or stop.reason:
                return code if code >= 0 else 128 - code
            now_at = newest_step(run)
            in_a_row, reached = 1 if now_at > reached else in_a_row + 1, now_at
            how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            pause = min(FIRST_PAUSE * 2 ** (in_a_row - 1), LONGEST_PAUSE)
            line = f"restart {in_a_row} of {restarts} in a row follows in {pause:.0f} s"
            if in_a_row > restarts:
                line = f"{restarts} restarts in a row without a new checkpoint, which is the limit"
            print(f"rl-train: the run was {how}; {line}", file=sys.stderr, flush=True)
            if in_a_row > restarts:
                return 1
            until = time.monotonic() + pause
            while time.monotonic() < until:
                if stop.reason:
                    return 1
                time.sleep(POLL_SECONDS)


def newest_step(run: Path) -> int:
    """Find the step in the name of the newest checkpoint; -1 without checkpoints."""
    names = (path.name.removeprefix("step-") for path in (run / "checkpoints").glob("step-*"))
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def run_child(arguments: Sequence[str], stop: StopFlag) -> int:
    """Run `rl-train` in a child process; return its exit code, negative for the signal that ended it."""
    command = [sys.executable, "-P", "-c", RL_TRAIN, *arguments]
    # In a separate process group: otherwise Ctrl-C would reach it twice, from the terminal and from here.
    process = subprocess.Popen(command, process_group=0, preexec_fn=end_with_parent)
    forwarded = False
    while True:
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if stop.reason and not forwarded:
                process.send_signal(signal.Signals[stop.reason])
                forwarded = True
        except KeyboardInterrupt:  # the second Ctrl-C interrupts the run at once
            process.send_signal(signal.SIGINT)


def dry_run(arguments: Sequence[str]) -> int:
    """Check the configuration for these arguments as for a run and print it; return the exit code."""
    config = parse_run(arguments, env_required=True)
    make_agents(config, config.factory(), find_device(config.device, config.num_learners))
    print(as_toml(to_dict(config)).decode(), end="")
    return 0


def run_training(config: RunConfig, directory: RunDirectory | None, stop: StopFlag, trust: bool = False) -> int:
    prepare_process(1)

    def report(outcome: Outcome) -> None:
        if outcome.failure and not isinstance(outcome.failure, KeyboardInterrupt):
            print(f"rl-train: {outcome.failure}", file=sys.stderr)
        print(farewell(config, outcome), flush=True)

    return train(config, directory, stop, at_end=report, trust=trust).exit_code


def farewell(config: RunConfig, outcome: Outcome) -> str:
    path, unsaved, done = outcome.path, outcome.unsaved, outcome.reason == "done"
    run, resume = shlex.quote(str(path)), resume_command(str(path))
    advice, stopped = f"continue with: {resume}", f"stopped ({outcome.reason})"
    if isinstance(outcome.failure, KeyboardInterrupt):
        return f"interrupted in an update, which is lost; {advice}"
    if outcome.failure:
        return advice
    if not outcome.began or path is None:
        return f"{stopped} before training began" + (f"; {advice}" if path else "")
    lost = f"the last {unsaved:,} of them are not in any checkpoint of {path}"
    storage = lost if unsaved else f"everything is in {path}"
    gif = f" --gif {shlex.quote(f'{path}/episode.gif')}" if can_draw(config.env) else ""
    lines = {
        "result": outcome.result,
        "continue": "" if done and not unsaved else resume,
        "evaluate": f"{shell_command('rl-eval')} {run} --episodes 1000{gif}",
        "curves": f"{shell_command('tensorboard')} --logdir {shlex.quote(str(path.parent))}",
        "population": f"{shell_command('rl-population')} {run}" if config.population else "",
    }
    head = f"{'finished' if done else stopped} after {outcome.steps:,} steps; {storage}"
    return "\n".join([head, *(f"  {name:14}  {line}" for name, line in lines.items() if line)])
