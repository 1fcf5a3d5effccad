"""The part of `rl-train` that trains several runs: `--seeds 1,2,3`, `--sweep ... --trials N`, `--resume` of both."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ...base.errors import EngramError, user_errors
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

PASSED_ON = ("--restarts",)
"""Flags of `rl-train` that are no settings and are passed on to every run."""


def trains_several(arguments: Sequence[str]) -> bool:
    """Whether words of `rl-train` are about several runs in one directory."""
    words = dashed(arguments)
    resumed = value_of("--resume", words)
    return any(word.partition("=")[0] in TRIAL_FLAGS for word in words) or (resumed is not None and has_plan(resumed))


def train_several(arguments: Sequence[str], stop: StopFlag) -> int:
    """Train as the words say; returns the exit code: 0 after the end and after a signal, 1 if a run failed."""
    words = dashed(arguments)
    given, words = {flag: _values(flag, words) for flag in TRIAL_FLAGS}, _without(words)
    resumed = value_of("--resume", words)
    passed = [word for flag in PASSED_ON if (x := value_of(flag, words)) is not None for word in (flag, x)]
    passed += [TRUST] * (TRUST in words)
    words = without([word for word in words if word != TRUST], (*PASSED_ON, "--resume"))
    jobs = _number("--jobs", given)
    with user_errors():
        if resumed is None:
            folder, plan, base = _started(given, words)
            changed = ["--time-limit", str(base.time_limit)] if base.time_limit else []
        else:
            folder = Path(resumed)
            plan, base = _resumed(folder, given), None
            changed = words
    runs = trial_runs(folder, plan, [*changed, *passed], changed)
    jobs = min(jobs or usual_jobs(runs[0].config), len(runs))
    if jobs > 1 and base is not None and base.in_process and base.learner_threads == "auto":
        threads = ["--learner-threads", str(max(1, num_cores() // jobs))]
        runs = [replace(run, words=(*run.words, *threads)) for run in runs]
    return _train(folder, plan, runs, jobs, stop)


def trial_runs(folder: Path, plan: Plan, words: Sequence[str], changed: Sequence[str]) -> list[TrialRun]:
    """Every run of a plan.

    Args:
        words: passed on to `rl-train --resume` of every run.
        changed: those of them that are settings, which are checked here.
    """
    found: list[TrialRun] = []
    for trial, seed, place in plan.runs():
        config = resumed_by_words(RunDirectory.open(folder / place, lock=False), changed)
        found.append(TrialRun(folder, place, trial, seed, config, tuple(words)))
    return found


def usual_jobs(config: RunConfig) -> int:
    """Runs at a time: as many as the cores have room for, with two for the first learner and one for each other."""
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
    lines = [f"{ended}: {done} of {len(runs)} runs have all their steps; all of it is in {folder}"]
    if done < len(runs):
        lines.append(f"  continue        {resume_command(folder)}")
    lines.append(f"  compare         {shell_command('rl-compare')} {name}")
    lines.append(f"  curves          {shell_command('tensorboard')} --logdir {name}")
    console.print("\n".join(lines), highlight=False, soft_wrap=True)


def _started(given: dict[str, list[str]], words: Sequence[str]) -> tuple[Path, Plan, RunConfig]:
    """A new directory, its plan and the configuration that its runs share."""
    if given["--seeds"] and value_of("--seed", words) is not None:
        raise EngramError("--seed and --seeds are both given; allowed: one of them")
    if not (given["--seeds"] or given["--sweep"]):
        flag = next(flag for flag in ("--trials", "--jobs") if given[flag])
        raise EngramError(f"{flag} is given without --sweep{' or --seeds' if flag == '--jobs' else ''}")
    if given["--sweep"] and not given["--trials"]:
        raise EngramError("--sweep needs --trials N, the number of samples")
    if given["--trials"] and not given["--sweep"]:
        raise EngramError("--trials is given without --sweep; allowed: with --sweep SETTING=loguniform(LOW,HIGH)")
    config = parse_run(words, env_required=True)
    if config.checkpoint_url is not None:
        raise EngramError("--checkpoint-url is given for several runs; allowed: for one, since runs cannot share a URL")
    if given["--sweep"] and config.population:
        raise EngramError(f"population is {config.population}; allowed with --sweep: 0 (--pbt.explore varies members)")
    seeds = tuple(count(x) for word in given["--seeds"] for x in word.split(",") if x.strip())
    trials = _number("--trials", given) or 1
    plan = Plan(seeds=seeds or (config.seed,), sweep=tuple(given["--sweep"]), trials=trials)
    first = plan.config(config, 0, plan.seeds[0])
    make_agents(first, first.factory(), find_device(first.device))  # raises EngramError before there is a directory
    return new_folder(config, plan), plan, config


def _resumed(folder: Path, given: dict[str, list[str]]) -> Plan:
    """The plan of a directory, with more trials if they are given."""
    if not has_plan(folder):
        flag = next(flag for flag in TRIAL_FLAGS if given[flag])
        raise EngramError(f"{flag} has no effect with --resume {folder}, which contains no runs of --seeds or --sweep")
    plan = read_plan(folder)
    for flag in ("--seeds", "--sweep"):
        if given[flag]:
            raise EngramError(f"{flag} has no effect with --resume: {folder} has its own; --trials can be raised")
    trials = _number("--trials", given)
    if trials is not None and not (plan.sweep and trials >= plan.trials):
        raise EngramError(f"trials is {trials}; allowed for {folder}: at least {plan.trials}, of a --sweep")
    base = base_config(folder, plan)
    plan = replace(plan, trials=trials or plan.trials)
    write_plan(folder, base, plan)
    return plan


def _number(flag: str, given: dict[str, list[str]]) -> int | None:
    if not given[flag]:
        return None
    with user_errors(f"{flag}"):
        number = count(given[flag][0])
    if number < 1 or len(given[flag]) > 1:
        raise EngramError(f"{flag} is {' '.join(given[flag])}; allowed: one whole number, at least 1")
    return number


def _values(flag: str, words: Sequence[str]) -> list[str]:
    """The words after the last `--flag A B`, or in `--flag=A`. Raises EngramError without any."""
    found: list[str] = []
    at_flag = given = False
    for word in words:
        name, equals, value = word.partition("=")
        if FLAG.fullmatch(name):
            at_flag = name == flag
            if at_flag:
                given, found = True, [value] if equals else []
        elif at_flag:
            found.append(word)
    if given and not found:
        raise EngramError(f"{flag} needs a value")
    return found


def _without(words: Sequence[str]) -> list[str]:
    """The words without TRIAL_FLAGS and their values."""
    kept: list[str] = []
    skip = False
    for word in words:
        if FLAG.fullmatch(name := word.partition("=")[0]):
            skip = name in TRIAL_FLAGS
        if not skip:
            kept.append(word)
    return kept
