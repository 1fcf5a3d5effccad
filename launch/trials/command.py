"""The part of `rl-train` that trains several runs: `--seeds 1,2,3`, `--sweep ... --trials N`, `--resume` of both."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ...base.errors import EngramError, refuse, user_errors
from ...base.processes import num_cores, shell_command
from ...base.units import count
from ..api.training import make_agents
from ..cluster.scheduler import RunFailedError, run_shown, signals_as_interrupt
from ..run.command_line import FLAG, TRUST, dashed, make_console, value_of, without
from ..run.config import RunConfig
from ..run.device import find_device
from ..run.run_directory import RunDirectory, resume_command
from ..run.run_flags import TRIAL_FLAGS, parse_run
from ..run.stop_flag import StopFlag
from ..train.resume import resumed_by_words
from .plan import Plan, base_config, has_plan, new_folder, read_plan, write_plan
from .summary import summary
from .trial import METRIC, TrialRun

PASSED_ON = ("--restarts",)  # Flags of `rl-train` that are not settings and are forwarded to every run


def trains_several(arguments: Sequence[str]) -> bool:
    """Whether arguments of `rl-train` request several runs in one directory."""
    argv = dashed(arguments)
    resumed = value_of("--resume", argv)
    return any(argument.partition("=")[0] in TRIAL_FLAGS for argument in argv) or (
        resumed is not None and has_plan(resumed)
    )


def train_several(arguments: Sequence[str], stop: StopFlag) -> int:
    """Train according to the arguments; returns the exit code: 0 after the end and after a signal, 1 if a run
    failed."""
    argv = dashed(arguments)
    trial_flags, argv = {flag: _values(flag, argv) for flag in TRIAL_FLAGS}, _without(argv)
    resumed = value_of("--resume", argv)
    passed = [argument for flag in PASSED_ON if (x := value_of(flag, argv)) is not None for argument in (flag, x)]
    passed += [TRUST] * (TRUST in argv)
    argv = without([argument for argument in argv if argument != TRUST], (*PASSED_ON, "--resume"))
    jobs = _number("--jobs", trial_flags)
    with user_errors():
        if resumed is None:
            folder, plan, base = _started(trial_flags, argv)
            changed = ["--time-limit", str(base.time_limit)] if base.time_limit else []
        else:
            folder = Path(resumed)
            plan, base = _resumed(folder, trial_flags), None
            changed = argv
    runs = trial_runs(folder, plan, [*changed, *passed], changed)
    jobs = min(jobs or usual_jobs(runs[0].config), len(runs))
    if jobs > 1 and base is not None and base.in_process and base.learner_threads == "auto":
        threads = ["--learner-threads", str(max(1, num_cores() // jobs))]
        runs = [replace(run, flags=(*run.flags, *threads)) for run in runs]
    return _train(folder, plan, runs, jobs, stop)


def trial_runs(folder: Path, plan: Plan, arguments: Sequence[str], changed: Sequence[str]) -> list[TrialRun]:
    """Every run of a plan.

    Args:
        arguments: forwarded to `rl-train --resume` of every run.
        changed: the settings among them, which are checked here.
    """
    runs: list[TrialRun] = []
    for trial, seed, place in plan.runs():
        config = resumed_by_words(RunDirectory.open(folder / place, lock=False), changed)
        runs.append(TrialRun(folder / place, place, trial, seed, config, tuple(arguments)))
    return runs


def usual_jobs(config: RunConfig) -> int:
    """Number of concurrent runs for the CPU cores, with two cores for the first learner and one for each other one."""
    actors = 0.0 if config.in_process else (config.fixed_actors or num_cores()) * config.actor_cpus
    return max(1, int(num_cores() // (1 + config.num_learners + actors)))


def _train(folder: Path, plan: Plan, runs: Sequence[TrialRun], jobs: int, stop: StopFlag) -> int:
    console = make_console()
    left = sum(not run.finished for run in runs)
    about = f"{plan.trials} trials with values sampled with seed {plan.seeds[0]}, " if plan.sweep else ""
    seeds = f"seed{'s' * (len(plan.seeds) > 1)} {', '.join(map(str, plan.seeds))}"
    console.print(f"{folder}: {about}{seeds}; {left} of {len(runs)} runs left, {jobs} at a time", highlight=False)
    code, ended = 0, "finished"
    try:
        with signals_as_interrupt():
            if stop.reason:
                raise KeyboardInterrupt
            if not run_shown(runs, jobs, console):
                ended = "stopped"
    except KeyboardInterrupt:
        ended = "stopped"
    except RunFailedError as problem:
        console.print(f"rl-train: {problem}", highlight=False, soft_wrap=True)
        code, ended = 1, "failed"
    _show_end(folder, plan, runs, ended, console)
    return code


def _show_end(folder: Path, plan: Plan, runs: Sequence[TrialRun], ended: str, console: Console) -> None:
    console.print(f"{METRIC}, mean over the last tenth of each run's steps", highlight=False, soft_wrap=True)
    console.print(summary(plan, runs))
    done, name = sum(run.finished for run in runs), shlex.quote(str(folder))
    lines = [f"{ended}: {done} of {len(runs)} runs have all their steps; everything is in {folder}"]
    if done < len(runs):
        lines.append(f"  continue        {resume_command(folder)}")
    lines.append(f"  compare         {shell_command('rl-compare')} {name}")
    lines.append(f"  curves          {shell_command('tensorboard')} --logdir {name}")
    console.print("\n".join(lines), highlight=False, soft_wrap=True)


def _started(trial_flags: dict[str, list[str]], arguments: Sequence[str]) -> tuple[Path, Plan, RunConfig]:
    """Create a directory; returns it with its plan and the common configuration of its runs."""
    if trial_flags["--seeds"] and value_of("--seed", arguments) is not None:
        raise EngramError("--seed and --seeds are both given; allowed: one of them")
    if not (trial_flags["--seeds"] or trial_flags["--sweep"]):
        flag = next(flag for flag in ("--trials", "--jobs") if trial_flags[flag])
        raise EngramError(f"{flag} is given without --sweep{' or --seeds' if flag == '--jobs' else ''}")
    refuse(trial_flags["--sweep"] and not trial_flags["--trials"], "--sweep needs --trials N, the number of samples")
    if trial_flags["--trials"] and not trial_flags["--sweep"]:
        raise EngramError("--trials is given without --sweep; allowed: with --sweep SETTING=loguniform(LOW,HIGH)")
    config = parse_run(arguments, env_required=True)
    if config.checkpoint_url is not None:
        raise EngramError("--checkpoint-url is given for several runs; allowed: for one, since runs cannot share a URL")
    if trial_flags["--sweep"] and config.population:
        raise EngramError(f"population is {config.population}; allowed with --sweep: 0 (--pbt.explore varies members)")
    seeds = tuple(count(x) for text in trial_flags["--seeds"] for x in text.split(",") if x.strip())
    trials = _number("--trials", trial_flags) or 1
    plan = Plan(seeds=seeds or (config.seed,), sweep=tuple(trial_flags["--sweep"]), trials=trials)
    first = plan.config(config, 0, plan.seeds[0])
    device = find_device(first.device, first.num_learners)
    make_agents(first, first.factory(), device)  # raises EngramError before there is a directory
    return new_folder(config, plan), plan, config


def _resumed(folder: Path, trial_flags: dict[str, list[str]]) -> Plan:
    """The plan of a directory, with more trials if requested."""
    if not has_plan(folder):
        flag = next(flag for flag in TRIAL_FLAGS if trial_flags[flag])
        raise EngramError(f"{flag} has no effect with --resume {folder}, which contains no runs of --seeds or --sweep")
    plan = read_plan(folder)
    for flag in ("--seeds", "--sweep"):
        refuse(trial_flags[flag], f"{flag} has no effect with --resume: {folder} has its own; --trials can be raised")
    trials = _number("--trials", trial_flags)
    if trials is not None and not (plan.sweep and trials >= plan.trials):
        raise EngramError(f"trials is {trials}; allowed for {folder}: at least {plan.trials}, of a --sweep")
    base = base_config(folder, plan)
    plan = replace(plan, trials=trials or plan.trials)
    write_plan(folder, base, plan)
    return plan


def _number(flag: str, trial_flags: dict[str, list[str]]) -> int | None:
    if not trial_flags[flag]:
        return None
    with user_errors(f"{flag}"):
        number = count(trial_flags[flag][0])
    if number < 1 or len(trial_flags[flag]) > 1:
        raise EngramError(f"{flag} is {' '.join(trial_flags[flag])}; allowed: one whole number, at least 1")
    return number


def _values(flag: str, arguments: Sequence[str]) -> list[str]:
    """The arguments after the last `--flag A B`, or in `--flag=A`. Raises EngramError without any."""
    values: list[str] = []
    at_flag = present = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if FLAG.fullmatch(name):
            at_flag = name == flag
            if at_flag:
                present, values = True, [value] if equals else []
        elif at_flag:
            values.append(argument)
    refuse(present and not values, f"{flag} needs a value")
    return values


def _without(arguments: Sequence[str]) -> list[str]:
    """The arguments without TRIAL_FLAGS and their values."""
    remaining: list[str] = []
    skip = False
    for argument in arguments:
        if FLAG.fullmatch(name := argument.partition("=")[0]):
            skip = name in TRIAL_FLAGS
        if not skip:
            remaining.append(argument)
    return remaining
