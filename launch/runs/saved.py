"""States from a run's checkpoints: the members' weights, and the metrics of the best checkpoint."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ...agents.normalization import RescaledHead
from ...base.errors import refuse
from ...learners import checkpoints
from .directory import refuse_inside


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
        if self.error is None:
            return f"mean return {self.mean:.3f} of {self.episodes:,} evaluation episodes"
        return f"mean return {self.mean:.3f} +- {1.96 * self.error:.3f} of the last {self.episodes:,} training episodes"


def read(path: Path) -> dict[str, Any]:
    """Read the state in a checkpoint of a run; `best` is a Best or None. Raises EngramError."""
    state = checkpoints.load(path)
    state["best"] = state["best"] and Best(*state["best"])
    refuse_inside(state.get("config", {}), path.absolute().parent.parent)
    return state


class Trainee(NamedTuple):
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
    return max(range(len(trainees)), key=lambda member: -math.inf if (x := trainees[member].score) is None else x)


def chosen_members(trainees: list[Trainee], member: int, every: bool) -> list[int]:
    """List the selected members: all, the best (-1), or one by its index."""
    refuse(len(trainees) == 1 and (every or member >= 0), "this run has no population, so it has no members")
    refuse(member >= len(trainees), f"member is {member}; allowed: 0..{len(trainees) - 1}, or -1 for the best")
    if every:
        return list(range(len(trainees)))
    return [member if member >= 0 else best_member(trainees)]


def take_weights(network: nn.Module, weights: dict[str, Any], path: Path) -> None:
    """Load the weights of `--start-from` at `path` into a network. The prediction head, which acting does not use,
    keeps its initial weights if the shapes of the heads differ."""
    initial = network.state_dict()
    predicting = [name for name in {**weights, **initial} if name.startswith("prediction.")]
    if any(_shape(weights, name) != _shape(initial, name) for name in predicting):
        weights = {name: x for name, x in weights.items() if name not in predicting}
        weights |= {name: x for name, x in initial.items() if name in predicting}
    different = difference(network, weights)
    refuse(different, f"--start-from {path}: its network differs: {different}")
    network.load_state_dict(weights)


def difference(network: nn.Module, weights: dict[str, Any]) -> str:
    """Describe how many tensors differ in shape between `weights` and `network`, with an example; empty if none."""
    ours, weights = network.state_dict(), dict(weights)
    RescaledHead.upgrade(weights, "value.")
    names = [name for name in {**weights, **ours} if _shape(weights, name) != _shape(ours, name)]
    examples = (f"{name}: {_shape(weights, name)} in the checkpoint, {_shape(ours, name)} here" for name in names)
    return f"{len(names)} tensors differ, such as {next(examples)}" if names else ""


def _shape(tensors: dict[str, Any], name: str) -> str:
    return str(list(tensors[name].shape)) if name in tensors else "none"


def described(trainees: list[Trainee], chosen: int) -> str:
    """Description of the chosen member; empty without a population."""
    if len(trainees) == 1:
        return ""
    score = trainees[chosen].score
    text = "no episode in training yet" if score is None else f"{score:.2f} in training"
    return f"member {chosen} of {len(trainees)}, {'the best: ' * (chosen == best_member(trainees))}{text}"
