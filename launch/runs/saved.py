"""Checked states from a run's checkpoints: the members' weights, and the metrics of the best checkpoint."""

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ...agents.normalization import RescaledHead
from ...base.errors import EngramError, refuse
from ...learners import checkpoints
from ...learners.checkpoints import CheckpointError
from ..config.imports import refuse_inside

_log = logging.getLogger(__name__)


class Best(NamedTuple):
    """The best checkpoint of a run and the metrics by which it was chosen."""

    mean: float  # Mean return of the episodes
    step: int  # Step of the checkpoint, in steps of all members
    member: int  # The member of the population that played the episodes
    episodes: int
    error: float | None  # Standard error of the mean of training episodes; None for evaluation episodes
    version: int | None = None  # Version of the evaluated weights; None for training episodes

    def gives_way_to(self, mean: float, error: float | None) -> bool:
        """Whether a checkpoint with another mean and standard error is better."""
        # Means of training and evaluation episodes cannot be compared: if the kinds differ, the new mean wins.
        return not math.isfinite(self.mean) or mean >= self.mean or (self.error is None) != (error is None)

    def __str__(self) -> str:
        """Describe the metrics."""
        if self.error is None:
            return f"mean return {self.mean:.3f} of {self.episodes:,} evaluation episodes"
        return f"mean return {self.mean:.3f} +- {1.96 * self.error:.3f} of the last {self.episodes:,} training episodes"


def read(path: Path) -> dict[str, Any]:
    """Read the state in a checkpoint; `best` is a Best or None. Raises CheckpointError if the checkpoint is damaged
    or not from a run."""
    state = checkpoints.load(path)
    try:
        state["best"] = state["best"] and Best(*state["best"])
        refuse_inside(state.get("config", {}), path.absolute().parent.parent)
        _check(state)
    except (TypeError, ValueError, LookupError, AttributeError) as problem:
        raise CheckpointError(f"{path}: contains no state of a run ({type(problem).__name__}: {problem})") from problem
    return state


def readable(directory: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield checkpoints and their states, newest first; warnings name unusable checkpoints."""
    for path in checkpoints.intact(directory):
        try:
            yield path, read(path)
        except CheckpointError as problem:
            _log.warning("skipped a checkpoint: %s", problem)


def _check(state: dict[str, Any]) -> None:
    """Raise TypeError, ValueError or KeyError if a state lacks entries that every command reads."""
    refuse(not state["members"], "it has no members")
    for member in state["members"]:
        missing = {"agent", "optimizer", "updates", "steps", "skipped"} - member["learner"].keys()
        if missing or "window" not in member["accumulator"]:
            raise KeyError(min(missing, default="window"))
        if not isinstance(member["learner"]["steps"], int):
            raise TypeError(f"learner/steps is {member['learner']['steps']!r}; expected int")


class Trainee(NamedTuple):
    """A member in a checkpoint."""

    weights: dict[str, Any]  # State of the member's agent
    score: float | None  # Mean return of its last training episodes; None if none has ended


def trainees_of(saved: dict[str, Any]) -> list[Trainee]:
    """List the members in a state from `saved.read`; a run without a population has one member."""
    trainees: list[Trainee] = []
    for member in saved["members"]:
        returns = [episode[0] for episode in member["accumulator"]["window"] if math.isfinite(episode[0])]
        trainees.append(Trainee(member["learner"]["agent"], math.fsum(returns) / len(returns) if returns else None))
    return trainees


def best_member(trainees: list[Trainee]) -> int:
    """Find the member with the highest score (the first if tied); member 0 if no member has a score."""
    scored = [(trainee.score, -member) for member, trainee in enumerate(trainees) if trainee.score is not None]
    return -max(scored)[1] if scored else 0


def chosen_members(trainees: list[Trainee], member: int, every: bool) -> list[int]:
    """List the selected members: all, the best (-1), or one by its index. Raises EngramError."""
    refuse(len(trainees) == 1 and (every or member >= 0), "this run has no population, so it has no members")
    refuse(member >= len(trainees), f"member is {member}; allowed: 0..{len(trainees) - 1}, or -1 for the best")
    if every:
        return list(range(len(trainees)))
    return [member if member >= 0 else best_member(trainees)]


def take_weights(network: nn.Module, weights: dict[str, Any], path: Path) -> None:
    """Load the weights of `--start-from` at `path` into a network. Raises EngramError if they do not fit. The
    prediction head, which acting does not use, keeps its initial weights if the shapes of the heads differ."""
    initial = network.state_dict()
    predicting = [name for name in {**weights, **initial} if name.startswith("prediction.")]
    if any(_shape(weights, name) != _shape(initial, name) for name in predicting):
        weights = {name: x for name, x in weights.items() if name not in predicting}
        weights |= {name: x for name, x in initial.items() if name in predicting}
    if different := difference(network, weights):
        raise EngramError(f"--start-from {path}: its network differs: {different}")
    network.load_state_dict(weights)


def difference(network: nn.Module, weights: dict[str, Any]) -> str:
    """Describe how many tensors differ in shape between `weights` and `network`, with an example; empty if none."""
    ours, weights = network.state_dict(), dict(weights)
    RescaledHead.upgrade(weights, "value.")
    wrong = [name for name in {**weights, **ours} if _shape(weights, name) != _shape(ours, name)]
    if not wrong:
        return ""
    name = wrong[0]
    return (
        f"{len(wrong)} tensors differ, such as {name}: {_shape(weights, name)} in the checkpoint, "
        f"{_shape(ours, name)} here"
    )


def _shape(tensors: dict[str, Any], name: str) -> str:
    return str(list(getattr(tensors[name], "shape", []))) if name in tensors else "none"


def described(trainees: list[Trainee], chosen: int) -> str:
    """Description of the chosen member; empty without a population."""
    if len(trainees) == 1:
        return ""
    score, best = trainees[chosen].score, best_member(trainees)
    text = "no episode in training yet" if score is None else f"{score:.2f} in training"
    return f"member {chosen} of {len(trainees)}, " + ("the best: " if chosen == best else "") + text
