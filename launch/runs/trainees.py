"""Trained weights in a checkpoint, and the choice of a population's member."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ...agents.normalization import RescaledHead
from ...base.errors import EngramError, refuse


class Trainee(NamedTuple):
    """A member in a checkpoint."""

    weights: dict[str, Any]  # State of the member's agent
    score: float | None  # Mean return of its last training episodes; None if none has ended


def trainees_of(saved: dict[str, Any]) -> list[Trainee]:
    """The members in a state from `saved.read`; a run without a population has one."""
    trainees: list[Trainee] = []
    for member in saved["members"]:
        returns = [episode[0] for episode in member["accumulator"]["window"] if math.isfinite(episode[0])]
        trainees.append(Trainee(member["learner"]["agent"], math.fsum(returns) / len(returns) if returns else None))
    return trainees


def best_member(trainees: list[Trainee]) -> int:
    """Member with the highest score, the first of equals; member 0 if no member has a score."""
    scored = [(trainee.score, -number) for number, trainee in enumerate(trainees) if trainee.score is not None]
    return -max(scored)[1] if scored else 0


def chosen_members(trainees: list[Trainee], member: int, every: bool) -> list[int]:
    """The selected members: all, the best (-1), or one by its number. Raises EngramError."""
    refuse(len(trainees) == 1 and (every or member >= 0), "this run has no population, so it has no members")
    refuse(member >= len(trainees), f"member is {member}; allowed: 0..{len(trainees) - 1}, or -1 for the best")
    if every:
        return list(range(len(trainees)))
    return [member if member >= 0 else best_member(trainees)]


def take_weights(network: nn.Module, weights: dict[str, Any], path: Path) -> None:
    """Load the weights of `--start-from` at `path` into a network. Raises EngramError if they do not fit. The
    prediction head, which acting does not use, keeps its initial weights unless both have the same one."""
    own = network.state_dict()
    predicting = [name for name in {**weights, **own} if name.startswith("prediction.")]
    if any(_shape(weights, name) != _shape(own, name) for name in predicting):
        weights = {name: x for name, x in weights.items() if name not in predicting}
        weights |= {name: x for name, x in own.items() if name in predicting}
    if different := difference(network, weights):
        raise EngramError(f"--start-from {path}: its network is different, {different}")
    network.load_state_dict(weights)


def difference(network: nn.Module, weights: dict[str, Any]) -> str:
    """Number of tensors whose shapes differ between `weights` and `network`, and the first; empty if none differs."""
    own, weights = network.state_dict(), dict(weights)
    RescaledHead.upgrade(weights, "value.")
    wrong = [name for name in {**weights, **own} if _shape(weights, name) != _shape(own, name)]
    if not wrong:
        return ""
    name = wrong[0]
    return (
        f"{len(wrong)} tensors differ, such as {name}: {_shape(weights, name)} in the checkpoint, "
        f"{_shape(own, name)} here"
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
