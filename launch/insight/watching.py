"""`--look-every`: images of the recurrent state on one level, repeated during training, and metrics of the state.

A separate actor plays with the newest weights between two updates, without affecting the random streams of training.
"""

import io
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from ...agents.cores.core import state_leaves
from ...agents.inside import panels, statistics
from ..config.run_config import RunConfig
from ..metrics.member import Member
from ..runs.trained import actor_in_training
from .page import DPI, figure, record, seen_panels

TAG = "memory"  # Tag of the image in TensorBoard
MOST_STEPS = 300  # Maximum steps of the episode
LARGEST_SHARE = 0.01  # Maximum fraction of the run's time for images: the next image is delayed accordingly


class Watcher:
    def __init__(self, config: RunConfig) -> None:
        self.every, self.name, self.seed = config.look_every, config.name, config.seed
        self.factory = replace(config.factory(), imitate="", num_envs=1, unroll_length=1)
        self._due: set[int] = set()
        self._next_at = 0.0  # The earliest time of the next image

    def look(self, member: Member, before: int, at_step: Callable[[], None] = lambda: None) -> None:
        """Plot a member's recurrent state if an image became due after step `before`, or is overdue; call `at_step`
        after each step of the environment."""
        if member.learner.steps // self.every > before // self.every:
            self._due.add(member.number)
        started = time.monotonic()
        if member.number in self._due and started >= self._next_at:
            self._due.remove(member.number)
            self._draw(member, at_step)
            now = time.monotonic()
            self._next_at = now + (now - started) / LARGEST_SHARE

    def _draw(self, member: Member, at_step: Callable[[], None]) -> None:
        with closing(actor_in_training(self.factory, member.learner.agent, self.seed)) as actor:
            actor.call_at_steps(at_step)
            if not state_leaves(actor.state.core):
                return
            recording = record(actor, images=False, most=MOST_STEPS)
        member.accumulator.note(statistics(recording.trace))
        if member.writer is None:
            return
        shown = [*seen_panels(recording)[:2], *panels(actor.agent.core, recording.trace)]
        title = f"{self.name}, step {member.learner.steps:,}, return {recording.rewards[1:].sum():.3g}"
        plot, file = figure(shown, title), io.BytesIO()
        plot.savefig(file, format="png")  # pyright: ignore[reportUnknownMemberType]
        width, height = (round(DPI * inches) for inches in plot.get_size_inches())
        member.writer.image(member.learner.steps, TAG, file.getvalue(), width, height)
