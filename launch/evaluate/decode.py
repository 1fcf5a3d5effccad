"""A linear decoder of the recurrent state, which predicts a fact of the environment at steps of an episode.

All environments play their first episode in parallel. At a step, the states [K, D] of unfinished episodes are the
inputs and the fact's values are the classes of a one-against-all ridge regression in dual form,

    scores = G_test,train (G_train + lambda I)^-1 Y,    G = X X^T of standardized X, Y of +-1

which predicts the class with the highest score. Accuracy is cross-validated: the decoder for an episode is fitted to
other episodes, and lambda is chosen within the training part. Chance is the fraction of the most frequent class.

The classes of a real-valued scalar are its quartiles over the unfinished episodes at the step.
"""

from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...actors.actor import Actor
from ...agents.agent import AgentState
from ...agents.cores.core import state_leaves
from ...agents.inside.parts import mask
from ...base.errors import EngramError, refuse, user_errors
from ...base.messages import nearest
from .episodes import rate_interval
from .intervene import Flags, Make, play_first

Ints, Matrix = NDArray[np.int64], NDArray[np.float64]
FOLDS = 5
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)  # lambda as a fraction of the mean diagonal of G
BINS = 4  # Classes of a real-valued scalar: equally frequent bins
FEWEST = 40  # Minimum number of unfinished episodes at a step for a decoder


class Reading(NamedTuple):
    """Accuracy of the decoder for the states after a step."""

    step: int
    episodes: int
    accuracy: float
    low: float
    high: float
    chance: float


def decoding_study(make: Make, text: str, *, episodes: int, every: int) -> list[Reading]:
    """Decode a fact, or `FACT:PART=WHICH`, over time. Raises EngramError for an unknown fact or too few episodes."""
    refuse(episodes < FEWEST, f"--decode: {episodes} episodes; needed: at least {FEWEST}")
    with closing(make(episodes, 0)) as actor, user_errors("--decode"):
        fact, _, part = text.partition(":")
        names = getattr(actor.batch, "fact_values", {})
        if fact not in names and not hasattr(actor.batch, "info_scalars"):
            raise EngramError(f"unknown fact {fact!r}; available facts: {nearest(fact, names)}")
        readings = decode(actor, fact, every, part)
        refuse(not readings, "this core has no state to decode from")
        return readings


def decode(actor: Actor, fact: str, every: int, part: str = "") -> list[Reading]:
    """Decode the fact, a name in `fact_values` or a key of `info`, from the state after every `every`-th step, or from
    a part of it, such as `slot=2`. The actor is new, with an unroll length of 1. Raises ValueError."""
    core, batch = actor.agent.core, actor.batch
    inside = state_leaves(mask(core, *part.split("=", 1))) if part else []
    readings: list[Reading] = []
    pending: tuple[int, Ints, Flags] | None = None

    def read(step: int, state: AgentState, playing: Flags) -> AgentState:
        nonlocal pending
        if pending is not None:
            before, classes, chosen = pending
            if inside:
                leaves = zip(state_leaves(state.core), inside, strict=True)
                features = [leaf.reshape(len(leaf), -1)[:, where.flatten()] for leaf, where in leaves]
            else:
                features = list(core.describe(state.core).values())
            readings.append(reading(before, torch.cat(features, 1).float().numpy()[chosen], classes[chosen]))
        pending = None
        if step % every == 0 and playing.sum() >= FEWEST:
            pending = step, fact_values(batch, fact, playing), playing.copy()
        return state

    if state_leaves(actor.state.core):
        play_first(actor, read)
        read(0, actor.state, np.zeros(batch.num_envs, np.bool_))  # the states after the very last step
    return readings


def fact_values(batch: Any, fact: str, playing: Flags) -> Ints:
    """Return the current value of the fact in every environment, int64 [K]; for Gymnasium, a scalar in `info`, or its
    quantile bin, 0..BINS-1, if it is real-valued. Raises ValueError if it is missing in an environment `playing`."""
    if not hasattr(batch, "info_scalars"):
        return batch.facts()[fact]
    values = batch.info_scalars(fact)
    if np.isnan(values[playing]).any():
        raise ValueError(f"info has no number for {fact!r}; expected: a number or a boolean at every step")
    if (values[playing] != np.round(values[playing])).any():
        edges = np.quantile(values[playing], np.arange(1, BINS) / BINS)
        values = np.searchsorted(edges, values)
    return np.where(playing, values, 0).astype(np.int64)


def reading(step: int, inputs: NDArray[np.float32], classes: Ints) -> Reading:
    """Cross-validate a linear decoder: inputs [K, D], classes [K]."""
    accuracy, low, high = rate_interval((predicted(inputs, classes) == classes).astype(np.float32))
    most_frequent = np.unique_counts(classes).counts.max()
    return Reading(step, len(classes), accuracy, low, high, float(most_frequent / len(classes)))


def predicted(inputs: NDArray[np.float32], classes: Ints) -> Ints:
    """Class of each of K episodes, predicted by a decoder fitted to the other folds."""
    values, indices = np.unique(classes, return_inverse=True)
    if len(values) == 1:
        return classes
    spread = inputs.std(0)
    scaled = ((inputs - inputs.mean(0)) / np.where(spread > 1e-7, spread, np.inf)).astype(np.float64)
    gram = scaled @ scaled.T
    targets = 2.0 * np.eye(len(values))[indices] - 1

    def fitted(train: Ints, test: Ints, ridge: float) -> Ints:
        train_gram = gram[np.ix_(train, train)]
        penalty = max(ridge * float(np.trace(train_gram)) / len(train), 1e-9)
        mean = targets[train].mean(0)
        weights = np.linalg.solve(train_gram + penalty * np.eye(len(train)), targets[train] - mean)
        return (gram[np.ix_(test, train)] @ weights + mean).argmax(1)

    fold = np.random.default_rng(0).permutation(len(classes)) % FOLDS
    predictions = np.empty(len(classes), np.int64)
    for k in range(FOLDS):
        train, test = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
        inner = fold[train] == (k + 1) % FOLDS
        fit, check = train[~inner], train[inner]
        right = [(fitted(fit, check, ridge) == indices[check]).mean() for ridge in RIDGES]
        predictions[test] = values[fitted(train, test, RIDGES[int(np.argmax(right))])]
    return predictions
