"""One of several runs of a directory, as a job of the scheduler."""

from dataclasses import dataclass

from ...learners import checkpoints
from ..cluster.scheduler import Job, tool
from ..metrics.rows import final_value, read_log, series, table_of
from ..run.config import RunConfig
from ..run.run_directory import RunDirectory

METRIC = "episode/return"  # Metric by which trials are sorted


@dataclass(frozen=True, eq=False)
class TrialRun(Job):
    """A run directory inside the directory of several runs; its label is the path there."""

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
        """The command to resume; a run without a checkpoint starts from its configuration."""
        return [tool("rl-train"), "--resume", str(self.folder), *self.flags]

    def final(self) -> float:
        """Mean of METRIC over the last tenth of the run's steps; nan if no episode has ended."""
        steps, values = series(table_of(read_log(RunDirectory(self.folder).metrics_file)), METRIC)
        return final_value(steps, values, steps[-1] if len(steps) else 0.0)
