"""The part of `rl-train` that trains several runs: `--seeds 1,2,3`, `--sweep ... --trials N`, `--resume` of both."""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from ...base.errors import EngramError, refuse, user_errors
from ...base.messages import check_whole
from ...base.processes import num_cores, shell_command
from ...base.stop_flag import StopFlag
from ...base.units import count
from ..api.training import make_agents
from ..cluster.scheduler import RunFailedError, run_shown, signals_as_interrupt
from ..config.command_line import TRUST, make_console, value_of
from ..config.device import find_device
from ..config.run_config import RunConfig
from ..config.run_flags import TRIAL_FLAGS, parse_run
from ..runs.directory import RunDirectory, resume_command
from ..runs.resume import resumed_by_words
from ..runs.trained import run_config
from .plan import METRIC, Plan, TrialRun, has_plan, new_folder, read_plan, summary, write_plan


def trains_several(arguments: Sequence[str]) -> bool:
    """Whether arguments of `rl-train` request several runs in one directory."""
    resumed = value_of("--resume", arguments)
    return any(argument.partition("=")[0] in TRIAL_FLAGS for argument in arguments) or (
        resumed is not None and has_plan(resumed)
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise EngramError(message.removeprefix("argument "))


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse the flags of several runs; return them with the arguments that are settings of each run."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    for flag in ("--seeds", "--sweep"):
        parser.add_argument(flag, nargs="+", default=[])
    for flag in ("--trials", "--jobs"):
        parser.add_argument(flag, type=count)
    parser.add_argument("--resume")
    parser.add_argument("--restarts")
    parser.add_argument(TRUST, dest="trust", action="store_true")
    flags, others = parser.parse_known_args(arguments)
    for name in ("trials", "jobs"):
        if getattr(flags, name) is not None:
            check_whole(f"--{name}", getattr(flags, name), 1)
    return flags, others


def train_several(arguments: Sequence[str], stop: StopFlag) -> int:
    """Train according to the arguments; return the exit code: 0 at the end or after a signal, 1 if a run
    failed."""
    flags, argv = _parse(arguments)
    passed = (["--restarts", flags.restarts] if flags.restarts else []) + [TRUST] * flags.trust
    with user_errors():
        if flags.resume is None:
            folder, plan, base = _start(flags, argv)
            changed = ["--time-limit", str(base.time_limit)] if base.time_limit else []
        else:
            folder = Path(flags.resume)
            plan, changed = _resume(folder, flags), argv
    runs = trial_runs(folder, plan, [*changed, *passed], changed)
    first = runs[0].config
    actors = 0.0 if first.in_process else (first.fixed_actors or num_cores()) * first.actor_cpus
    default = max(1, int(num_cores() // (1 + first.num_learners + actors)))  # the first learner has two cores
    jobs = min(flags.jobs or default, len(runs))
    if jobs > 1 and first.in_process:
        threads = ["--learner-threads", str(max(1, num_cores() // jobs))]
        automatic = [run.config.learner_threads == "auto" for run in runs]
        runs = [replace(run, flags=(*run.flags, *threads * auto)) for run, auto in zip(runs, automatic, strict=True)]
    return _train(folder, plan, runs, jobs, stop)


def trial_runs(folder: Path, plan: Plan, arguments: Sequence[str], changed: Sequence[str]) -> list[TrialRun]:
    """List every run of a plan.

    Args:
        arguments: forwarded to `rl-train --resume` of every run.
        changed: the settings among these arguments, which are checked here.
    """
    runs: list[TrialRun] = []
    for trial, seed, path in plan.runs():
        config = resumed_by_words(RunDirectory.open(folder / path, lock=False), changed)
        runs.append(TrialRun(folder / path, path, trial, seed, config, tuple(arguments)))
    return runs


def _train(folder: Path, plan: Plan, runs: Sequence[TrialRun], jobs: int, stop: StopFlag) -> int:
    console = make_console()
    left = sum(not run.finished for run in runs)
    trials = f"{plan.trials} trials with values sampled with seed {plan.seeds[0]}, " if plan.sweep else ""
    seeds = f"seed{'s' * (len(plan.seeds) > 1)} {', '.join(map(str, plan.seeds))}"
    report = partial(console.print, highlight=False, soft_wrap=True)
    report(f"{folder}: {trials}{seeds}; {left} of {len(runs)} runs left, {jobs} at a time")
    code = 0
    try:
        with signals_as_interrupt():
            if stop.reason:
                raise KeyboardInterrupt
            ended = "finished" if run_shown(runs, jobs, console) else "stopped"
    except KeyboardInterrupt:
        ended = "stopped"
    except RunFailedError as problem:
        report(f"rl-train: {problem}")
        code, ended = 1, "failed"
    report(f"{METRIC}, mean over the last tenth of each run's steps")
    report(summary(plan, runs))
    done, name = sum(run.finished for run in runs), shlex.quote(str(folder))
    report(f"{ended}: {done} of {len(runs)} runs have all their steps; everything is in {folder}")
    if done < len(runs):
        report(f"  continue        {resume_command(folder)}")
    report(f"  compare         {shell_command('rl-compare')} {name}")
    report(f"  curves          {shell_command('tensorboard')} --logdir {name}")
    return code


def _start(flags: argparse.Namespace, arguments: Sequence[str]) -> tuple[Path, Plan, RunConfig]:
    """Create a directory; return it with its plan and the common configuration of its runs."""
    seed = value_of("--seed", arguments) is not None
    refuse(flags.seeds and seed, "--seed and --seeds are both given; allowed: one of them")
    refuse(flags.trials and not flags.sweep, "--trials is given without --sweep SETTING=loguniform(LOW,HIGH)")
    refuse(not (flags.seeds or flags.sweep), "--jobs is given without --sweep or --seeds")
    refuse(flags.sweep and not flags.trials, "--sweep needs --trials N, the number of samples")
    config = parse_run(arguments, env_required=True)
    refuse(config.checkpoint_url, "--checkpoint-url is given for several runs, which cannot share it")
    text = f"population is {config.population}; allowed with --sweep: 0 (--pbt.explore varies members)"
    refuse(flags.sweep and config.population, text)
    seeds = tuple(count(x) for text in flags.seeds for x in text.split(",") if x.strip())
    plan = Plan(seeds=seeds or (config.seed,), sweep=tuple(flags.sweep), trials=flags.trials or 1)
    first = plan.config(config, 0, plan.seeds[0])
    device = find_device(first.device, first.num_learners)
    make_agents(first, first.factory(), device)  # raises EngramError before a directory exists
    return new_folder(config, plan), plan, config


def _resume(folder: Path, flags: argparse.Namespace) -> Plan:
    """Read the plan of a directory, and add trials if requested."""
    used = " ".join(flag for flag in TRIAL_FLAGS if getattr(flags, flag[2:]))
    refuse(not has_plan(folder), f"{used} has no effect with --resume {folder}, which does not contain several runs")
    refuse(flags.seeds or flags.sweep, f"{used} has no effect with --resume: {folder} has its own; allowed: --trials")
    plan = read_plan(folder)
    if flags.trials is None:
        return plan
    allowed = f"allowed for {folder}: at least {plan.trials}, for a --sweep"
    refuse(not (plan.sweep and flags.trials >= plan.trials), f"trials is {flags.trials}; {allowed}")
    _, _, first = plan.runs()[0]
    plan = replace(plan, trials=flags.trials)
    write_plan(folder, run_config(RunDirectory.open(folder / first, lock=False)), plan)
    return plan
