"""`--look-every`: images of the recurrent state on one level, repeated during training, and metrics of its states.

A separate agent plays with the newest weights, in this process and between two updates, without effect on training's
random streams. The staleness of stored states is measured on two consecutive unrolls of an actor: the second begins
with the stored state, which is compared with the state of the newest weights after the first one.
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

TAG = "memory"  # Tag of the image in TensorBoard
MOST_STEPS = 300  # Maximum steps of the episode
LARGEST_SHARE = 0.01  # Maximum fraction of the run's time for images; later ones wait until the limit allows them
ENVIRONMENTS = 16  # Maximum environments of an unroll whose states are recomputed


class Watcher:
    """Shows the recurrent states of a run's members during training."""

    def __init__(self, config: RunConfig) -> None:
        self.every, self.name, self.seed = config.look_every, config.name, config.seed
        self.factory = replace(config.factory(), imitate="", num_envs=1, unroll_length=1)
        self.spent = 0.0  # Seconds spent in total
        self.images = 0  # Number of images so far
        self.began = time.monotonic()
        self._dearest, self._newest = 0.0, 0.0
        """Seconds of an image with its follow-up work: of the slowest one, and so far of the newest."""
        self._due: set[int] = set()
        self._first: dict[int, Unroll | None] = {}
        """First of two unrolls, by member whose stored states are to be compared; None before it arrives."""

    def look(self, member: Member, before: int, at_step: Callable[[], None] = lambda: None) -> None:
        """Plot a member's recurrent state if an image became due between `before` and its current steps, or is overdue.

        `at_step` is called after each step of the environment; an exception from it ends the episode.
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
        """Whether another image keeps within the share of the run's time, or is the first one."""
        most = LARGEST_SHARE * (time.monotonic() - self.began)
        return self.spent == 0 or self.spent + self._dearest <= most

    def note_cost(self, seconds: float) -> None:
        """Add seconds spent on the newest image."""
        self.spent += seconds
        self._newest += seconds
        self._dearest = max(self._dearest, self._newest)

    def receive(self, member: Member, unroll: Unroll) -> None:
        """Process an unroll on its way to the learner; two consecutive ones of an actor measure the staleness of
        states."""
        if member.number not in self._first:
            return
        first = self._first[member.number]
        if first is not None and unroll.actor != first.actor:
            return
        started = time.monotonic()
        chosen = torch.arange(min(ENVIRONMENTS, len(unroll.weights_version)))
        second = some_environments(unroll, chosen)  # copied: a view would keep memory of the object store
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
            recording = record(actor, images=False, most=MOST_STEPS)
        member.accumulator.note(statistics(recording.trace))
        self._first[member.number] = None
        if member.writer is None:
            return
        shown = [*seen_panels(recording, option_names(actor))[:2], *panels(actor.agent.core, recording.trace)]
        timeline = marks(recording, dict(getattr(actor.batch, "fact_values", {})))
        title = f"{self.name}, step {member.learner.steps:,}, return {recording.rewards[1:].sum():.3g}"
        made = png(figure(shown, title, timeline))
        self.images += 1
        member.writer.show(events.image(member.learner.steps, TAG, *made))

    def _staleness(self, agent: Agent, first: Unroll, second: Unroll) -> float | None:
        """Staleness of the second unroll's initial states; None if the first unroll did not end there."""
        new, old = fresh(agent, first), to_device(second, agent.policy.weight.device).initial_state
        # An actor that was replaced, or received another member's weights, begins new episodes.
        return staleness(old.core, new.core) if torch.equal(old.elapsed, new.elapsed) else None

    def _actor(self, agent: Agent) -> Actor:
        """An actor with the newest weights that begins with the same level every time."""
        weights = {name: value.cpu() for name, value in agent.state_dict().items()}
        with torch.random.fork_rng(devices=[]):  # a new agent samples initial weights, which are replaced at once
            return make_actor(self.factory, weights, seed=self.seed, greedy=False, num_envs=1, unroll_length=1)


def fresh(agent: Agent, unroll: Unroll) -> AgentState:
    """The state after an unroll, recomputed with these weights from its initial state."""
    device = agent.policy.weight.device
    unroll = to_device(unroll, device)
    state, generator = unroll.initial_state, torch.Generator(device)
    for t in range(len(unroll.agent.action)):
        now = map_leaves(lambda x, t=t: x[t], unroll.env)
        _, state = agent.step(now, state, generator)
        state = state._replace(previous_action=unroll.agent.action[t])
    return state
