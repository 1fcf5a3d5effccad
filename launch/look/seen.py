"""Panels of what is outside the memory: policy, value, reward and, in a world without pictures, the observation."""

from collections.abc import Sequence

import numpy as np

from ...agents.inside import Panel
from ...agents.inside.panels import MOST_ROWS, liveliest
from .recording import Recording


def seen_panels(recording: Recording, options: Sequence[str]) -> list[Panel]:
    """The policy comes first: the page shows the bars of a step from it."""
    policy = recording.probabilities.T.copy()
    gaussian = recording.actions.dtype.kind == "f"
    note = "Means and logarithms of standard deviations." if gaussian else "Probability of every action."
    found = [
        Panel("policy", note, "heat", policy, tuple(options), "signed" if gaussian else "share"),
        Panel(
            "value and reward",
            "The value that the agent expects, and the reward that came with the observation.",
            "lines",
            np.stack([recording.values, recording.rewards]),
            ("value", "reward"),
        ),
    ]
    if not recording.boards and recording.observations.size:
        series = recording.observations.T.copy()
        kept = liveliest(series, MOST_ROWS)
        labels = tuple(f"number {i}" for i in kept)
        found.append(Panel("observation", "What the agent sees.", "heat", series[kept], labels, "signed"))
    return found
