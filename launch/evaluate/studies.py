"""Studies of the recurrent state: interventions and a linear decoder (docs/how-to/insight.md).

Wiping, swapping, freezing or perturbing the state affects return and solved rate. STEP counts the steps of an episode
from 0; the state is changed before the step is taken, between two unrolls of one step each.

The decoder predicts a fact of the environment. All environments play their first episode in parallel. At a step, the
states [K, D] of unfinished episodes are the inputs and the fact's values are the classes of a one-against-all ridge
regression in dual form,

    scores = G_test,train (G_train + lambda I)^-1 Y,    G = X X^T of standardized X, Y of +-1

Accuracy is cross-validated: the decoder for an episode is fitted to other episodes, and lambda is chosen within the
training part. Chance is the fraction of the most frequent class.
"""

import re
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...actors.actor import Actor
from ...actors.unroll import EPISODE_COLUMNS
from ...agents.agent import AgentState
from ...agents.cores.core import Core, CoreState, map_state, state_leaves
from ...agents.inside import mask
from ...base.errors import EngramError, check_name, nearest, refuse, user_errors
from ..runs.trained import EVALUATED_TOGETHER
from .episodes import RATES, Episodes, Estimate, mean_interval, rate_interval

FORMS = {  # The form of each kind, and a pattern for its parameter
    "wipe": ("wipe@STEP", ""),  # Reset to the initial state
    "swap": ("swap@STEP", ""),  # Exchange with another environment
    "freeze": ("freeze@STEP:END with an END of at least STEP", r":(?P<end>\d+)"),  # Constant from STEP to END - 1
    "noise": ("noise@STEP:SIGMA with a SIGMA of at least 0", r":(?P<sigma>\d*\.?\d+(e-?\d+)?)"),
}
FOLDS = 5
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)  # lambda as a fraction of the mean diagonal of G
BINS = 4  # Classes of a real-valued scalar: equally frequent bins
FEWEST = 40  # Minimum number of unfinished episodes at a step for a decoder
Flags, Ints = NDArray[np.bool_], NDArray[np.int64]
Make = Callable[[int, int], Actor]  # Makes an actor, from the number of environments and the index of the first


class Intervention(NamedTuple):
    kind: str
    step: int
    end: int  # End of a freeze; otherwise the step itself
    sigma: float
    part: str
    which: str


def parsed(text: str) -> Intervention:
    kind = text.partition("@")[0]
    check_name("intervention", kind, FORMS)
    form, parameter = FORMS[kind]
    match = re.fullmatch(rf"{kind}@(?P<step>\d+){parameter}(:(?P<part>\w+)=(?P<which>.+))?", text)
    fields = match.groupdict("") if match else {}
    step, end = int(fields.get("step", -1)), int(fields.get("end", fields.get("step", -1)))
    refuse(not 0 <= step <= end, f"intervene is {text!r}; expected {form}, and :PART=WHICH for a part of the state")
    return Intervention(kind, step, end, float(fields.get("sigma", 0)), fields["part"], fields["which"])


class Interference:
    """An intervention on the recurrent states of a batch. Raises ValueError if the core lacks the part to change."""

    def __init__(self, core: Core, change: Intervention, seed: int) -> None:
        self.core, self.change = core, change
        self.mask = mask(core, change.part, change.which)
        self.frozen: CoreState = ()
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, step: int, state: AgentState, playing: Flags) -> AgentState:
        """Return the state for step `step`; only environments that are `playing` swap states."""
        change = self.change
        freezes = change.kind == "freeze"
        if freezes and step == change.step:
            self.frozen = map_state(Tensor.clone, state.core)
        if not change.step + freezes <= step <= change.end:
            return state
        if change.kind == "swap":
            donors = np.arange(len(playing))
            donors[playing] = np.roll(donors[playing], 1)
            other = map_state(lambda leaf: leaf[torch.from_numpy(donors)], state.core)
        elif change.kind == "noise":
            other = map_state(self._perturb, state.core)
        else:
            other = self.frozen if freezes else self.core.initial_state(len(playing))
        return state._replace(core=map_state(torch.where, self.mask, other, state.core))

    def _perturb(self, leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        return leaf + self.change.sigma * leaf.std() * torch.empty_like(leaf).normal_(generator=self.generator)


class Played(NamedTuple):
    """The first episode of every environment of a batch."""

    episodes: Episodes  # [N, 3 + F], by environment
    reached: Flags  # [N]: whether the episode reached the step of the intervention


Before = Callable[[int, AgentState, Flags], AgentState]


def play_first(actor: Actor, before: Before | None = None, step: int = 0) -> Played:
    """Play the first episode of every environment of a new actor with an unroll length of 1; levels and random numbers
    are the same at every call. `before` changes the state before each step; unfinished episodes at `step` reach it."""
    n = actor.batch.num_envs
    playing, reached, outcomes, t = np.ones(n, np.bool_), np.zeros(n, np.bool_), {}, 0
    while playing.any():
        if t == step:
            reached = playing.copy()
        if before is not None:
            actor.state = before(t, actor.state, playing)
        for episode in actor.unroll().episodes.numpy():
            index = int(episode[0]) - actor.first_index
            if playing[index]:
                playing[index] = False
                outcomes[index] = episode
        t += 1
    return Played(np.stack([outcomes[index] for index in range(n)]), reached)


def play_all(make: Make, episodes: int, batch: int, change: Intervention | None, seed: int) -> Played:
    """Play `episodes` first episodes, in batches of environments, with an intervention or none; `seed` is of noise."""
    played: list[Played] = []
    for first in range(0, episodes, batch):
        with closing(make(min(batch, episodes - first), first)) as actor:
            before = None if change is None else Interference(actor.agent.core, change, seed + first)
            played.append(play_first(actor, before, 0 if change is None else change.step))
    return Played(*(np.concatenate(parts) for parts in zip(*played, strict=True)))


class Difference(NamedTuple):
    """An outcome with and without an intervention, over the same levels and random numbers."""

    without: float
    changed: float
    difference: Estimate  # Difference per episode, with minus without; Student's t


class Effect(NamedTuple):
    step: int
    reached: int  # Episodes that reached the step; the others are unchanged
    outcomes: dict[str, Difference]  # `return`, `length` and `solved`, if the environment has them

    def plain(self) -> dict[str, Any]:
        outcomes = {
            name: {"without": x.without, "with": x.changed, "difference": x.difference.plain()}
            for name, x in self.outcomes.items()
        }
        return {"step": self.step, "reached": self.reached} | outcomes


def effect(without: Played, changed: Played, fields: tuple[str, ...], step: int) -> Effect:
    """Return paired differences of the episodes' outcomes; a rate is over the episodes that report it in both."""
    columns, outcomes = (*EPISODE_COLUMNS, *fields), dict[str, Difference]()
    for name in ("return", "length", *RATES):
        if name in columns:
            column = columns.index(name)
            old, new = (played.episodes[:, column].astype(np.float64) for played in (without, changed))
            reported = ~np.isnan(old + new) if name in RATES else slice(None)  # nan: the episode does not report it
            old, new = old[reported], new[reported]
            if len(old):
                outcomes[name] = Difference(float(old.mean()), float(new.mean()), mean_interval(new - old))
    return Effect(step, int(changed.reached.sum()), outcomes)


def intervention_study(make: Make, text: str, *, episodes: int, sweep: bool, every: int, seed: int) -> list[Effect]:
    """Measure the effects of an intervention at its step and, with `sweep`, at every `every`-th step after it."""
    with user_errors("--intervene"):
        change = parsed(text)
        without = play_all(make, episodes, EVALUATED_TOGETHER, None, seed)
        with closing(make(1, 0)) as actor:
            fields = tuple(actor.batch.episode_fields)

        def after(steps: int) -> Effect:
            later = change._replace(step=change.step + steps, end=change.end + steps)
            return effect(without, play_all(make, episodes, EVALUATED_TOGETHER, later, seed), fields, later.step)

        longest = int(without.episodes[:, EPISODE_COLUMNS.index("length")].max())
        first = after(0)
        refuse(not first.reached, f"no episode reaches step {change.step}; the longest has {longest} steps")
        return [first, *map(after, range(every, longest - change.step, every) if sweep else ())]


class Reading(NamedTuple):
    """Accuracy of the decoder for the states after a step."""

    step: int
    episodes: int
    accuracy: float
    low: float
    high: float
    chance: float


def decoding_study(make: Make, text: str, *, episodes: int, every: int) -> list[Reading]:
    """Decode a fact, or `FACT:PART=WHICH`, over time."""
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
    """Decode a fact from the state after every `every`-th step, or from a part of it, such as `slot=2`, of a new actor
    with an unroll length of 1. Raises ValueError."""
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
    """Return the fact in every environment, int64 [K]; for Gymnasium, a scalar in `info`, or its quantile bin if it is
    real-valued. Raises ValueError if it is missing in an environment `playing`."""
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
