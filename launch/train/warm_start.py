"""`--start-from RUN`: a new run whose networks begin with what another run has learned, such as on easier levels."""

from collections.abc import Iterable
from pathlib import Path

from ... import zoo
from ...agents.agent import Agent
from ...learners.checkpoints import CheckpointError
from ..run.command_line import UsageError
from ..run.run_directory import RunDirectory, RunDirectoryError
from ..run.trained import find_checkpoint, is_card, open_run
from ..run.trainees import Trainee, best_member, take_weights, trainees_of


def start_from(run: str, agents: Iterable[Agent]) -> None:
    """Give agents the weights of a run's best checkpoint, of its best member; the newest checkpoint if none is best.

    Optimizers, counters and schedules begin again. Raises UsageError if there is no such run, or its network has other
    parameters.
    """
    path, trainees = _trained(run)
    weights = trainees[best_member(trainees)].weights
    for agent in agents:
        take_weights(agent, weights, path)


def _trained(run: str) -> tuple[Path, list[Trainee]]:
    """The checkpoint to start from, and the members in it."""
    if not run:
        raise UsageError("--start-from is ''; allowed: a run directory, zoo:NAME, or the folder or URL of a card")
    if run.startswith(zoo.PREFIX) or is_card(run):
        kept = open_run(run, "latest")
        return kept.checkpoint, kept.trainees
    try:
        directory = RunDirectory.open(run, lock=False)
        path, state = find_checkpoint(directory, "latest")
        if state["best"] is not None:
            path, state = find_checkpoint(directory, "best")
    except (RunDirectoryError, CheckpointError) as problem:
        raise UsageError(f"--start-from: {problem}") from problem
    return path, trainees_of(state)
