"""`--look-every`: images of the recurrent state on one level, repeated during training, and metrics of the state.

A separate actor plays with the newest weights, in this process and between two updates, without affecting the random
streams of training.
"""

import io
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from ...agents.cores.core import state_leaves
from ...agents.inside import Panel, panels, statistics
from ..config.run_config import RunConfig
from ..metrics import events
from ..metrics.member import Member
from ..runs.trained import actor_in_training
from .command import option_names
from .page import finite, seen_panels, span
from .recording import Mark, marks, record

TAG = "memory"  # Tag of the image in TensorBoard
MOST_STEPS = 300  # Maximum steps of the episode
LARGEST_SHARE = 0.01  # Maximum fraction of the run's time for images: the next image is delayed accordingly
DPI = 100
MOST_NAMES = 12  # Maximum rows or curves with names


class Watcher:
    """Images of the recurrent states of a run's members during training."""

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
        shown = [*seen_panels(recording, option_names(actor))[:2], *panels(actor.agent.core, recording.trace)]
        timeline = marks(recording, dict(getattr(actor.batch, "fact_values", {})))
        title = f"{self.name}, step {member.learner.steps:,}, return {recording.rewards[1:].sum():.3g}"
        plot, file = figure(shown, title, timeline), io.BytesIO()
        plot.savefig(file, format="png")  # pyright: ignore[reportUnknownMemberType]
        width, height = (round(DPI * inches) for inches in plot.get_size_inches())
        member.writer.show(events.image(member.learner.steps, TAG, file.getvalue(), width, height))


def figure(panels: Sequence[Panel], title: str, marks: Sequence[Mark]) -> Figure:
    """Plot panels over the steps of an episode, one below the other."""
    heights = [0.9 if x.kind == "lines" else np.clip(0.1 * len(x.labels), 0.5, 2.0) for x in panels]
    plot = Figure((8.6, sum(heights) + 0.35 * len(panels) + 0.6), DPI, layout="constrained")
    axes = plot.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for panel, axis in zip(panels, axes, strict=True):
        low, high = span(panel)
        values = finite(panel.values, low, high)
        named = len(panel.labels) <= MOST_NAMES
        if panel.kind == "lines":
            for label, series in zip(panel.labels, values, strict=False):
                axis.plot(series, label=label, linewidth=1)
            if named:
                axis.legend(fontsize=6, loc="upper left", ncols=len(values))
        else:
            colors = "RdBu_r" if panel.scale == "signed" else "inferno"
            axis.imshow(values, colors, aspect="auto", interpolation="nearest", vmin=low, vmax=high)
            axis.set_yticks(range(len(values)) if named else [], panel.labels if named else [], fontsize=6)
        axis.set_title(f"{panel.title}   {low:.3g} to {high:.3g}", fontsize=8, loc="left", parse_math=False)
        axis.tick_params(labelsize=6)
        for mark in marks:
            axis.axvline(mark.step, color="#f59e0b", linewidth=0.8)
    events = "   ".join(f"{mark.step}: {mark.text}" for mark in marks)[:150]
    plot.suptitle(f"{title}\n{events}", fontsize=8, parse_math=False)
    return plot
