"""The part of `rl-train` that trains several runs: `--seeds 1,2,3`, `--sweep ... --trials N`, `--resume` of both."""

import argparse
import itertools
import math
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import tomli_w
from rich import box
from rich.table import Column, Table

from ...base.errors import EngramError, check_whole, file_errors, refuse, user_errors
from ...base.files import replace_file
from ...base.processes import StopFlag, num_cores, shell_command
from ...base.units import count
from ...learners import checkpoints
from ...learners.population.config import Explored, Values, applied, parse
from ..api.training import make_agents
from ..cluster.scheduler import Job, RunFailedError, run_shown, signals_as_interrupt, tool
from ..config.command_line import TRUST, make_console, value_of
from ..config.plain import from_dict, to_dict
from ..config.run_config import RunConfig, find_device
from ..config.run_flags import TRIAL_FLAGS, parse_run
from ..metrics.rows import final_value, read_log, series_of_run, table_of
from ..runs.directory import CONFIG, RunDirectory, new_path, resume_command
from ..runs.trained import resumed_by_words, run_config

PLAN = "trials.toml"
METRIC = "episode/return"  # Metric by which trials are sorted
_SAMPLING = 0x5EED  # Key of the random streams for sampled settings


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The runs of a directory: seed-1 ..., or trial-000 ... (with several seeds trial-000/seed-1 ...). Trial k has the
    same values for any number of trials, so a search can be extended."""

    seeds: tuple[int, ...]  # Seeds of the runs; the first one also seeds the sampled settings
    sweep: tuple[str, ...] = ()  # Search space, such as learner.lr=loguniform(1e-4,1e-2); without one: a single trial
    trials: int = 1  # Samples of the search space

    def __post_init__(self) -> None:
        for seed in self.seeds:
            check_whole("seeds", seed, 0, 2**64 - 1)
            refuse(self.seeds.count(seed) > 1, f"seeds has {seed} twice; allowed: each seed once")
        _ = self.space  # raises ValueError

    @property
    def space(self) -> tuple[Explored, ...]:
        return parse(self.sweep, "sweep")

    def values(self, trial: int) -> Values:
        rng = np.random.default_rng(np.random.SeedSequence(self.seeds[0], spawn_key=(_SAMPLING, trial)))
        return {explored.setting: explored.sample(rng) for explored in self.space}

    def runs(self) -> list[tuple[int, int, str]]:
        """List the trial, seed and path in the directory of every run, in the order in which the runs start."""
        path = "trial-{trial:03}/seed-{seed}" if len(self.seeds) > 1 else "trial-{trial:03}"
        path = path if self.sweep else "seed-{seed}"
        runs = itertools.product(range(self.trials), self.seeds)
        return [(trial, seed, path.format(trial=trial, seed=seed)) for trial, seed in runs]

    def config(self, base: RunConfig, trial: int, seed: int) -> RunConfig:
        """Return the configuration of a run. Raises ValueError for a setting that the algorithm lacks."""
        learner = applied(base.learner, self.values(trial)).resolved()
        return replace(base, seed=seed, learner=learner, run_dir=None)


def has_plan(folder: str | Path) -> bool:
    return (Path(folder) / PLAN).is_file()


def new_folder(config: RunConfig, plan: Plan) -> Path:
    folder = Path(config.run_dir) if config.run_dir else new_path(config.name)
    refuse(has_plan(folder), f"{folder} contains runs already; to continue them: {resume_command(folder)}")
    with file_errors(f"cannot use {folder} as a run directory"):
        folder.mkdir(parents=True, exist_ok=True)
        if existing := next(folder.iterdir(), None):
            raise EngramError(f"{folder} is not empty (it contains {existing.name!r}); choose another --run-dir")
    write_plan(folder, config, plan)
    return folder


def write_plan(folder: Path, base: RunConfig, plan: Plan) -> None:
    """Write the plan, and a run directory with a configuration for every run that has none. Raises EngramError."""
    with user_errors(), file_errors(f"cannot write to {folder}"):
        for trial, seed, path in plan.runs():
            if not (folder / path / CONFIG).exists():
                RunDirectory.create(folder / path, to_dict(plan.config(base, trial, seed)), name=path).close()
        replace_file(folder / PLAN, tomli_w.dumps(asdict(plan)).encode())


@dataclass(frozen=True, eq=False)
class TrialRun(Job):
    """A run directory inside the directory of several runs; its label is the path inside."""

    trial: int
    seed: int
    config: RunConfig  # Configuration for resuming the run
    flags: tuple[str, ...] = ()  # Flags of `rl-train --resume`

    @property
    def total_steps(self) -> int:
        return self.config.total_steps * self.config.num_members

    @property
    def finished(self) -> bool:
        newest = checkpoints.latest(RunDirectory(self.folder).checkpoints)
        return newest is not None and checkpoints.step_of(newest) >= self.total_steps

    def command(self) -> list[str]:
        """Return the command to resume; a run without a checkpoint starts from its configuration."""
        return [tool("rl-train"), "--resume", str(self.folder), *self.flags]

    def final(self) -> float:
        """Mean of METRIC over the last tenth of the run's steps, over all members; nan if no episode has ended."""
        run = RunDirectory(self.folder)
        members = [run.member(member) for member in range(self.config.population)]
        tables = [table_of(read_log(directory.metrics_file)) for directory in (run, *members)]
        steps, values = series_of_run(tables, METRIC)
        return final_value(steps, values, steps[-1] if len(steps) else 0.0)


def summary(plan: Plan, runs: Sequence[TrialRun]) -> Table:
    """Make a table with a row per trial, best first; without a sweep, with a row per seed and their mean."""
    first = ["trial", *(explored.setting for explored in plan.space)] if plan.sweep else ["seed"]
    columns = (Column(name, justify="right", overflow="fold") for name in (*first, "return", "steps"))
    table = Table(*columns, Column("state", overflow="fold"), box=box.SIMPLE_HEAD)
    if plan.sweep:
        values = [[f"{x:.4g}" for x in plan.values(trial).values()] for trial in range(plan.trials)]
        groups = [([f"{k}", *row], [run for run in runs if run.trial == k]) for k, row in enumerate(values)]
        groups.sort(key=lambda group: -np.mean(_finals(group[1]) or [-np.inf]))
    else:
        groups = [([f"{run.seed}"], [run]) for run in runs]
        groups += [(["mean"], list(runs))] if len(runs) > 1 else []
    for labels, group in groups:
        finals, done, total = _finals(group), sum(run.finished for run in group), len(group)
        spread = f" (sd {np.std(finals, ddof=1):.2g}, n {len(finals)})" if len(finals) > 1 else ""
        state = "finished" if done == total else f"{done} of {total} finished" if total > 1 else "unfinished"
        result = f"{np.mean(finals):.4g}{spread}" if finals else "-"
        table.add_row(*labels, result, f"{sum(run.steps() for run in group):,}", state)
    return table


def _finals(runs: Sequence[TrialRun]) -> list[float]:
    return [x for run in runs if not math.isnan(x := run.final())]


def trains_several(arguments: Sequence[str]) -> bool:
    """Whether arguments of `rl-train` request several runs in one directory."""
    resumed = value_of("--resume", arguments)
    requested = any(argument.partition("=")[0] in TRIAL_FLAGS for argument in arguments)
    return requested or (resumed is not None and has_plan(resumed))


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
    for flag in ("--resume", "--restarts"):
        parser.add_argument(flag)
    parser.add_argument(TRUST, dest="trust", action="store_true")
    flags, others = parser.parse_known_args(arguments)
    for name in ("trials", "jobs"):
        if getattr(flags, name) is not None:
            check_whole(f"--{name}", getattr(flags, name), 1)
    return flags, others


def train_several(arguments: Sequence[str], stop: StopFlag) -> int:
    """Train according to the arguments; return the exit code: 0 at the end or after a signal, 1 if a run failed."""
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
        threads = "--learner-threads", str(max(1, num_cores() // jobs))
        runs = [replace(run, flags=run.flags + threads * (run.config.learner_threads == "auto")) for run in runs]
    return _train(folder, plan, runs, jobs, stop)


def trial_runs(folder: Path, plan: Plan, arguments: Sequence[str], changed: Sequence[str]) -> list[TrialRun]:
    """List every run of a plan; `arguments` go to `rl-train --resume`, after a check of its settings, `changed`."""
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
    used = " ".join(flag for flag in TRIAL_FLAGS if getattr(flags, flag[2:]))
    refuse(not has_plan(folder), f"{used} has no effect with --resume {folder}, which does not contain several runs")
    refuse(flags.seeds or flags.sweep, f"{used} has no effect with --resume: {folder} has its own; allowed: --trials")
    with user_errors(f"{folder / PLAN}"), file_errors(f"cannot read {folder / PLAN}"):
        plan = from_dict(Plan, tomllib.loads((folder / PLAN).read_text("utf-8")))
    if flags.trials is None:
        return plan
    allowed = f"allowed for {folder}: at least {plan.trials}, for a --sweep"
    refuse(not (plan.sweep and flags.trials >= plan.trials), f"trials is {flags.trials}; {allowed}")
    _, _, first = plan.runs()[0]
    plan = replace(plan, trials=flags.trials)
    write_plan(folder, run_config(RunDirectory.open(folder / first, lock=False)), plan)
    return plan
