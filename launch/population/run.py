"""Puts a run's population together: the host, its log, and what shows it."""

from collections.abc import Sequence
from contextlib import ExitStack, closing

from ..metrics.member import Member
from ..metrics.panel import Panel
from ..metrics.writer import MetricsWriter
from ..run.config import RunConfig
from ..run.run_directory import RunDirectory
from .events import PopulationWriter
from .host import PopulationHost, PopulationLog
from .panel import PopulationPanel


def add_population(
    config: RunConfig,
    members: Sequence[Member],
    fields: Sequence[str],
    directory: RunDirectory,
    panel: Panel,
    step: int | None,
    files: ExitStack,
) -> PopulationHost:
    """The host of a population, whose rows the panel shows.

    Args:
        config: the run's configuration.
        members: all of them.
        fields: names of the environment's episode fields.
        directory: the run's.
        panel: shows the run.
        step: steps of all members in the checkpoint from which the run goes on, None for one that begins.
        files: closes what is written to.
    """
    log = PopulationLog(directory.population_file, step, panel.message)
    writer = files.enter_context(MetricsWriter(directory.path, step or 0, panel.message))
    host = PopulationHost(config, members, log, PopulationWriter(writer, config, fields, log.past), panel.message)
    files.enter_context(closing(host))
    if isinstance(panel, PopulationPanel):
        panel.members(host.rows)
    return host
