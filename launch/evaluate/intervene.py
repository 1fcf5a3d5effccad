"""Interventions: how wiping, swapping, freezing or perturbing the recurrent state affects return and solved rate.

    wipe@STEP               reset to the initial state
    swap@STEP               every environment continues with the state of another environment
    freeze@STEP:END         the steps from STEP to END - 1 do not change the state
    noise@STEP:SIGMA        add normal noise of SIGMA standard deviations of each leaf's values

each optionally followed by `:PART=WHICH` for a part of the state, such as `wipe@120:slot=2`, `wipe@0:pool=6-8`
or `swap@9:leaf=memory`. STEP counts the steps of an episode from 0; the state is changed before the step is taken,
between two unrolls of one step each.
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
from ...agents.cores.core import Core, CoreState, map_state
from ...agents.inside.parts import mask
from ...base.errors import refuse, user_errors
from ...base.messages import check_name
from ..runs.trained import EVALUATED_TOGETHER
from .episodes import RATES, Episodes, Estimate, mean_interval

FORMS = {
    "wipe": ("wipe@STEP", ""),
    "swap": ("swap@STEP", ""),
    "freeze": ("freeze@STEP:END with an END of at least STEP", r":(?P<end>\d+)"),
    "noise": ("noise@STEP:SIGMA with a SIGMA of at least 0", r":(?P<sigma>\d*\.?\d+(e-?\d+)?)"),
}
"""The form of each kind, and a pattern for its parameter."""
Flags = NDArray[np.bool_]
Make = Callable[[int, int], Actor]  # Makes an actor, from the number of environments and the index of the first


class Intervention(NamedTuple):
    """A change of the recurrent state, and its step."""

    kind: str
    step: int
    end: int  # End of a freeze; otherwise the step itself
    sigma: float
    part: str
    which: str


def parsed(text: str) -> Intervention:
    """Parse an intervention. Raises ValueError."""
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
        if change.kind == "freeze" and step == change.step:
            self.frozen = map_state(Tensor.clone, state.core)
        if not change.step + (change.kind == "freeze") <= step <= change.end:
            return state
        other = self._other(state.core, playing)
        return state._replace(core=map_state(torch.where, self.mask, other, state.core))

    def _other(self, state: CoreState, playing: Flags) -> CoreState:
        """Return the state whose masked part replaces that of `state`."""
        kind = self.change.kind
        if kind == "freeze":
            return self.frozen
        if kind == "wipe":
            return self.core.initial_state(len(playing))
        if kind == "swap":
            donors = np.arange(len(playing))
            donors[playing] = np.roll(donors[playing], 1)
            return map_state(lambda leaf: leaf[torch.from_numpy(donors)], state)
        return map_state(self._add_noise, state)

    def _add_noise(self, leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        noise = torch.empty_like(leaf).normal_(generator=self.generator)
        return leaf + self.change.sigma * leaf.std() * noise


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
    """Effect of one intervention."""

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
    outcomes: dict[str, Difference] = {}
    for column, name in enumerate((*EPISODE_COLUMNS, *fields)):
        if name in ("return", "length", *RATES):
            old, new = (played.episodes[:, column].astype(np.float64) for played in (without, changed))
            if name in RATES:  # nan in an episode that does not report it
                reported = ~np.isnan(old + new)
                old, new = old[reported], new[reported]
            if len(old):
                outcomes[name] = Difference(float(old.mean()), float(new.mean()), mean_interval(new - old))
    return Effect(step, int(changed.reached.sum()), outcomes)


def intervention_study(make: Make, text: str, *, episodes: int, sweep: bool, every: int, seed: int) -> list[Effect]:
    """Measure the effects of an intervention at its step and, with `sweep`, at every `every`-th step after it. Raises
    EngramError for an intervention that the core does not support."""
    with user_errors("--intervene"):
        change = parsed(text)
        without = play_all(make, episodes, EVALUATED_TOGETHER, None, seed)
        with closing(make(1, 0)) as actor:
            fields = tuple(actor.batch.episode_fields)

        def after(steps: int) -> Effect:
            """Effect of the same intervention at a later step."""
            later = change._replace(step=change.step + steps, end=change.end + steps)
            return effect(without, play_all(make, episodes, EVALUATED_TOGETHER, later, seed), fields, later.step)

        longest = int(without.episodes[:, EPISODE_COLUMNS.index("length")].max())
        first = after(0)
        refuse(not first.reached, f"no episode reaches step {change.step}; the longest has {longest} steps")
        return [first, *map(after, range(every, longest - change.step, every) if sweep else ())]
