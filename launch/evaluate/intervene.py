"""Interventions: how wiping, swapping, freezing or perturbing the recurrent state affects return and solved rate.

    wipe@STEP               reset to the initial state
    swap@STEP               every environment continues with the state of another environment
    freeze@STEP:END         the steps from STEP to END - 1 do not change the state
    noise@STEP:SIGMA        add normal noise of SIGMA standard deviations of each leaf's values

each optionally followed by `:PART=WHICH` for a part of the state, such as `wipe@120:slot=2`, `wipe@0:pool=6-8`
or `swap@9:leaf=memory`. STEP counts the steps of an episode from 0; the state is changed before the step is taken.
The actor is the same as in every evaluation, with one step per unroll, and its state is changed between two unrolls,
so an evaluation without an intervention runs none of this code.
"""

import re
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...actors.actor import Actor
from ...agents.agent import AgentState
from ...agents.cores.core import Core, CoreState, map_state
from ...agents.inside.parts import mask
from ...base.errors import refuse
from ...base.messages import nearest
from .episodes import Episodes

KINDS = {"wipe": (), "swap": (), "freeze": ("END",), "noise": ("SIGMA",)}
Flags = NDArray[np.bool_]


class Intervention(NamedTuple):
    """A change of the recurrent state, and its step."""

    kind: str
    step: int
    end: int  # End of a freeze; otherwise the step itself
    sigma: float
    part: str
    which: str

    def shifted(self, steps: int) -> "Intervention":
        """The same intervention at a later step."""
        return self._replace(step=self.step + steps, end=self.end + steps)


def parsed(text: str) -> Intervention:
    """Parse an intervention. Raises ValueError."""
    kind, at, rest = text.partition("@")
    if kind not in KINDS:
        raise ValueError(f"intervene is {text!r}; did you mean: {nearest(kind, KINDS)} at a step, such as wipe@120?")
    fields = rest.split(":") if at else []
    part = fields.pop() if fields and "=" in fields[-1] else ""
    form = f"{kind}@" + ":".join(("STEP", *KINDS[kind])) + "[:PART=WHICH]"
    refuse(len(fields) != 1 + len(KINDS[kind]) or not fields[0].isdigit(), f"intervene is {text!r}; expected {form}")
    step, more = int(fields[0]), fields[1] if len(fields) > 1 else ""
    if kind == "freeze" and not (more.isdigit() and int(more) >= step):
        raise ValueError(f"intervene is {text!r}; expected {form} with an END of at least {step}")
    if kind == "noise" and not re.fullmatch(r"\d*\.?\d+(e-?\d+)?", more):
        raise ValueError(f"intervene is {text!r}; expected {form} with a SIGMA of at least 0")
    name, _, which = part.partition("=")
    return Intervention(
        kind, step, int(more) if kind == "freeze" else step, float(more) if kind == "noise" else 0.0, name, which
    )


class Interference:
    """An intervention on the recurrent states of a batch. Raises ValueError if the core lacks the part to change."""

    def __init__(self, core: Core, change: Intervention, seed: int) -> None:
        self.core, self.change = core, change
        self.mask = mask(core, change.part, change.which)
        self.frozen: CoreState | None = None
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, step: int, state: AgentState, playing: Flags) -> AgentState:
        """Return the state for step `step`; only environments that are `playing` swap states."""
        change = self.change
        if change.kind == "freeze":
            if step == change.step:
                self.frozen = map_state(Tensor.clone, state.core)
            if self.frozen is None or not change.step < step <= change.end:
                return state
            return state._replace(core=self._mix(state.core, self.frozen))
        return state if step != change.step else state._replace(core=self._mix(state.core, self._other(state, playing)))

    def _other(self, state: AgentState, playing: Flags) -> CoreState:
        if self.change.kind == "wipe":
            return self.core.initial_state(len(playing))
        if self.change.kind == "swap":
            donors = np.arange(len(playing))
            donors[playing] = np.roll(donors[playing], 1)
            chosen = torch.from_numpy(donors)
            return map_state(lambda leaf: leaf[chosen], state.core)
        return map_state(self._add_noise, state.core)

    def _add_noise(self, leaf: Tensor) -> Tensor:
        if not (self.change.sigma and leaf.is_floating_point()):  # noise applies only to floating-point leaves
            return leaf
        noise = torch.empty_like(leaf).normal_(generator=self.generator)
        return leaf + self.change.sigma * leaf.std() * noise

    def _mix(self, state: CoreState, other: CoreState) -> CoreState:
        return map_state(lambda inside, new, old: torch.where(inside, new, old), self.mask, other, state)


class Played(NamedTuple):
    """The first episode of every environment of a batch."""

    episodes: Episodes  # [N, 3 + F], by environment
    reached: Flags  # [N]: whether the episode reached the step of the intervention


Before = Callable[[int, AgentState, Flags], AgentState]


def play_first(actor: Actor, before: Before | None = None, step: int = 0, least: int = 1) -> Played:
    """Play the first episode of every environment, with the same levels and random numbers at every call.

    Args:
        actor: new, with an unroll length of 1.
        before: function that changes the state before a step.
        step: the step at which to record which episodes are unfinished.
        least: minimum number of episodes in the batch that must reach `step`; with fewer, none counts as reaching it.
    """
    n = actor.batch.num_envs
    playing, reached, outcomes, t = np.ones(n, np.bool_), np.zeros(n, np.bool_), {}, 0
    while playing.any():
        if t == step:
            reached = playing & (playing.sum() >= least)
        if before is not None:
            actor.state = before(t, actor.state, playing)
        for episode in actor.unroll().episodes.numpy():
            index = int(episode[0]) - actor.first_index
            if playing[index]:
                playing[index] = False
                outcomes[index] = episode
        t += 1
    return Played(np.stack([outcomes[index] for index in range(n)]), reached)


def play_all(
    make: Callable[[int, int], Actor], episodes: int, batch: int, change: Intervention | None, seed: int
) -> Played:
    """Play `episodes` first episodes, in batches of environments.

    Args:
        make: returns an actor, from the number of environments and the index of the first one.
        episodes: number of episodes.
        batch: number of environments per batch.
        change: the intervention; None to play without one.
        seed: seed of the noise.
    """
    played: list[Played] = []
    for first in range(0, episodes, batch):
        with closing(make(min(batch, episodes - first), first)) as actor:
            before = None if change is None else Interference(actor.agent.core, change, seed + first)
            least = 2 if change and change.kind == "swap" else 1  # a swap needs two environments
            played.append(play_first(actor, before, 0 if change is None else change.step, least))
    return Played(*(np.concatenate(parts) for parts in zip(*played, strict=True)))
