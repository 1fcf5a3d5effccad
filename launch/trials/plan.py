"""Directory of several runs: one configuration with several seeds, or a random search over settings.

    trials.toml             seeds, search space, number of trials
    seed-1/ seed-2/ ...     run directories of `--seeds`
    trial-000/ ...          run directories of `--sweep`; with several seeds trial-000/seed-1/ ...
    seed-1.log ...          output of each run

Trial k has the same values for any number of trials, sampled with the random stream of (seed, k), so a search can be
extended.
"""

import itertools
import math
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tomli_w
from rich import box
from rich.table import Column, Table

from ...base.errors import EngramError, file_errors, refuse, user_errors
from ...base.files import replace_file
from ...base.messages import check_whole
from ...learners import checkpoints
from ...learners.population.search_space import Explored, Values, applied, parse
from ..cluster.scheduler import Job, tool
from ..config.run_config import RunConfig
from ..config.settings.plain import from_dict, to_dict
from ..metrics.rows import final_value, read_log, series_of_run, table_of
from ..runs.directory import CONFIG, RunDirectory, new_path, resume_command

PLAN = "trials.toml"
METRIC = "episode/return"  # Metric by which trials are sorted
_SAMPLING = 0x5EED  # Key of the random streams for sampled settings


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The runs of a directory."""

    seeds: tuple[int, ...]  # Seeds of the runs; the first one also seeds the sampled settings
    sweep: tuple[str, ...] = ()
    """Search space, such as learner.lr=loguniform(1e-4,1e-2); without one there is a single trial."""
    trials: int = 1  # Samples of the search space

    def __post_init__(self) -> None:
        for seed in self.seeds:
            check_whole("seeds", seed, 0, 2**64 - 1)
            refuse(self.seeds.count(seed) > 1, f"seeds has {seed} twice; allowed: each seed once")
        _ = self.space  # raises ValueError

    @property
    def space(self) -> tuple[Explored, ...]:
        """Parsed `sweep`."""
        return parse(self.sweep, "sweep")

    def values(self, trial: int) -> Values:
        """Sample the settings of a trial, by dotted name."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seeds[0], spawn_key=(_SAMPLING, trial)))
        return {explored.setting: explored.sample(rng) for explored in self.space}

    def runs(self) -> list[tuple[int, int, str]]:
        """List the trial, seed and path in the directory of every run, in the order in which the runs start."""
        several = len(self.seeds) > 1 or not self.sweep
        runs: list[tuple[int, int, str]] = []
        for trial, seed in itertools.product(range(self.trials), self.seeds):
            folders = [f"trial-{trial:03}"] * bool(self.sweep) + [f"seed-{seed}"] * several
            runs.append((trial, seed, "/".join(folders)))
        return runs

    def config(self, base: RunConfig, trial: int, seed: int) -> RunConfig:
        """Return the configuration of a run. Raises ValueError for a setting that the algorithm lacks."""
        learner = applied(base.learner, self.values(trial)).resolved()
        return replace(base, seed=seed, learner=learner, run_dir=None)


def has_plan(folder: str | Path) -> bool:
    """Whether a directory contains several runs of a plan."""
    return (Path(folder) / PLAN).is_file()


def read_plan(folder: Path) -> Plan:
    """Read the plan of a directory. Raises EngramError naming the problem in its file."""
    with user_errors(f"{folder / PLAN}"), file_errors(f"cannot read {folder / PLAN}"):
        return from_dict(Plan, tomllib.loads((folder / PLAN).read_text("utf-8")))


def new_folder(config: RunConfig, plan: Plan) -> Path:
    """Create the directory of a plan. Raises EngramError if it contains files."""
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
        """Total steps of all members."""
        return self.config.total_steps * self.config.num_members

    @property
    def finished(self) -> bool:
        """Whether the newest checkpoint has all steps."""
        newest = checkpoints.latest(RunDirectory(self.folder).checkpoints)
        return newest is not None and checkpoints.step_of(newest) >= self.total_steps

    def command(self) -> list[str]:
        """Return the command to resume; a run without a checkpoint starts from its configuration."""
        return [tool("rl-train"), "--resume", str(self.folder), *self.flags]

    def final(self) -> float:
        """Mean of METRIC over the last tenth of the run's steps, for a population over all members; nan if no episode
        has ended."""
        run = RunDirectory(self.folder)
        members = [run.member(member) for member in range(self.config.population)]
        tables = [table_of(read_log(directory.metrics_file)) for directory in (run, *members)]
        steps, values = series_of_run(tables, METRIC)
        return final_value(steps, values, steps[-1] if len(steps) else 0.0)


def summary(plan: Plan, runs: Sequence[TrialRun]) -> Table:
    """Make a table with a row per trial, best first; without a sweep, with a row per seed and their mean."""
    names = [explored.setting for explored in plan.space]
    header = (*(["trial", *names] if plan.sweep else ["seed"]), "return", "steps")
    columns = (Column(name, justify="right", overflow="fold") for name in header)
    table = Table(*columns, Column("state", overflow="fold"), box=box.SIMPLE_HEAD)
    groups: list[tuple[list[str], list[TrialRun]]] = []
    if plan.sweep:
        for trial in range(plan.trials):
            values = plan.values(trial)
            labels = [f"{trial}", *(f"{values[name]:.4g}" for name in names)]
            groups.append((labels, [run for run in runs if run.trial == trial]))
        groups.sort(key=lambda group: -np.nan_to_num(np.mean(_finals(group[1]) or [np.nan]), nan=-np.inf))
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
