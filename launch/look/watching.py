"""`--look-every`: the memory at work on one level, again and again while it is trained, and numbers about its states.

An agent of its own plays with the newest weights, in this process and between two updates; training's random numbers
do not notice. How stale stored states are is measured on two unrolls that an actor makes one after the other: the
second begins with the state that the actor had stored, and the newest weights run through the first one to a fresh one.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import torch

from ...actors.actor import Actor
from ...actors.unroll import Unroll, some_environments, to_device
from ...agents.agent import Agent, AgentState
from ...agents.cores.core import state_leaves
from ...agents.inside import panels
from ...agents.inside.statistics import staleness, statistics
from ...agents.values import map_leaves
from ..metrics import events
from ..metrics.member import Member
from ..run.config import RunConfig
from ..run.trained import make_actor
from .command import option_names
from .plots import figure, png
from .recording import marks, record
from .seen import seen_panels

TAG = "memory"
"""Of the picture in TensorBoard."""
MOST_STEPS = 300
"""Of the episode; a longer one is cut off."""
LARGEST_SHARE = 0.01
"""Of the run's time that all of this may take; after the first picture the next ones wait until it is no more."""
ENVIRONMENTS = 16
"""Environments of an unroll whose states are made again, at most."""


class Watcher:
    """Looks at the memories of a run's members while they learn."""

    def __init__(self, config: RunConfig) -> None:
        self.every, self.name, self.seed = config.look_every, config.name, config.seed
        self.factory = replace(config.factory(), imitate="", num_envs=1, unroll_length=1)
        self.spent = 0.0
        """Seconds that all of this has taken."""
        self.pictures = 0
        """Drawn so far."""
        self.began = time.monotonic()
        self._dearest, self._newest = 0.0, 0.0
        """Seconds of a picture with what follows from it: of the dearest one, and so far of the newest."""
        self._due: set[int] = set()
        self._first: dict[int, Unroll | None] = {}
        """Of members whose stored states are to be compared: the first of two unrolls, once it is there."""

    def look(self, member: Member, before: int, at_step: Callable[[], None] = lambda: None) -> None:
        """Draw a member's memory if that became due between `before` and its steps now, or is so still.

        `at_step` is called after each step of the environment; what it raises ends the episode.
        """
        if member.learner.steps // self.every > before // self.every:
            self._due.add(member.number)
        if member.number not in self._due or not self.affordable():
            return
        started = time.monotonic()
        self._due.remove(member.number)
        self._draw(member, at_step)
        self._newest = 0.0
        self.note_cost(time.monotonic() - started)

    def affordable(self) -> bool:
        """Whether all pictures with one more take no more than their share of the time so far; or it is the first."""
        most = LARGEST_SHARE * (time.monotonic() - self.began)
        return self.spent == 0 or self.spent + self._dearest <= most

    def note_cost(self, seconds: float) -> None:
        """Count in seconds that went into the newest picture."""
        self.spent += seconds
        self._newest += seconds
        self._dearest = max(self._dearest, self._newest)

    def receive(self, member: Member, unroll: Unroll) -> None:
        """An unroll on its way to the learner; two of an actor in a row tell how stale stored states are."""
        if member.number not in self._first:
            return
        first = self._first[member.number]
        if first is not None and unroll.actor != first.actor:
            return
        started = time.monotonic()
        chosen = torch.arange(min(ENVIRONMENTS, len(unroll.weights_version)))
        second = some_environments(unroll, chosen)  # copied: a part would hold on to the object store
        share = None if first is None else self._staleness(member.learner.agent, first, second)
        if share is None:
            self._first[member.number] = second
        else:
            member.accumulator.note({"state/staleness": share})
            del self._first[member.number]
        self.note_cost(time.monotonic() - started)

    def _draw(self, member: Member, at_step: Callable[[], None]) -> None:
        with closing(self._actor(member.learner.agent)) as actor:
            actor.call_at_steps(at_step)
            if not state_leaves(actor.state.core):
                return
            recording = record(actor, pictures=False, most=MOST_STEPS)
        member.accumulator.note(statistics(recording.trace))
        self._first[member.number] = None
        if member.writer is None:
            return
        shown = [*seen_panels(recording, option_names(actor))[:2], *panels(actor.agent.core, recording.trace)]
        timeline = marks(recording, dict(getattr(actor.batch, "fact_values", {})))
        title = f"{self.name}, step {member.learner.steps:,}, return {recording.rewards[1:].sum():.3g}"
        made = png(figure(shown, title, timeline))
        self.pictures += 1
        member.writer.show(events.picture(member.learner.steps, TAG, *made))

    def _staleness(self, agent: Agent, first: Unroll, second: Unroll) -> float | None:
        """Of the states that the second unroll begins with; None if the first one did not end there."""
        new, old = fresh(agent, first), to_device(second, agent.policy.weight.device).initial_state
        # An actor that was replaced, or was given another member's weights, begins new episodes.
        return staleness(old.core, new.core) if torch.equal(old.elapsed, new.elapsed) else None

    def _actor(self, agent: Agent) -> Actor:
        """The newest weights in an actor that begins with the same level every time."""
        weights = {name: value.cpu() for name, value in agent.state_dict().items()}
        with torch.random.fork_rng(devices=[]):  # a new agent draws first weights, which are replaced at once
            return make_actor(self.factory, weights, seed=self.seed, greedy=False, num_envs=1, unroll_length=1)


def fresh(agent: Agent, unroll: Unroll) -> AgentState:
    """The state after an unroll, made with these weights from the state that it began with."""
    device = agent.policy.weight.device
    unroll = to_device(unroll, device)
    state, generator = unroll.initial_state, torch.Generator(device)
    for t in range(len(unroll.agent.action)):
        now = map_leaves(lambda x, t=t: x[t], unroll.env)
        _, state = agent.step(now, state, generator)
        state = state._replace(previous_action=unroll.agent.action[t])
    return state
