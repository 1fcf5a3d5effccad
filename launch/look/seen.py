"""Panels other than the recurrent state: policy, value, reward and, if nothing is rendered, the observation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.inside import Panel
from ...agents.inside.panels import MOST_ROWS, liveliest
from .leaves import SINGLE, Image, images, is_image
from .recording import Recording


def seen_panels(recording: Recording, options: Sequence[str]) -> list[Panel]:
    """Panels with the policy first: the page shows the bars of a step from it."""
    policy = recording.probabilities.T.copy()
    gaussian = recording.actions.dtype.kind == "f"
    note = "Means and logarithms of standard deviations." if gaussian else "Probability of every action."
    panels = [
        Panel("policy", note, "heat", policy, tuple(options), "signed" if gaussian else "share"),
        Panel(
            "value and reward",
            "The predicted value, and the reward received with the observation.",
            "lines",
            np.stack([recording.values, recording.rewards]),
            ("value", "reward"),
        ),
    ]
    for name, array in ({} if recording.views else recording.observations).items():
        if array[0].size > 1 and not is_image(array):
            panels.append(_heat(name, array))
    return panels


def _heat(name: str, array: NDArray[Any]) -> Panel:
    """The entries of an array [T, ...] that change most."""
    series = array.reshape(len(array), -1).T.astype(np.float32)
    chosen = liveliest(series, MOST_ROWS)
    labels = tuple(f"number {i}" for i in chosen)
    title = name if name == SINGLE else f"{SINGLE}: {name}"
    return Panel(title, "The agent's observation.", "heat", series[chosen], labels, "signed")


def seen_images(recording: Recording) -> dict[str, list[Image]]:
    """Each array of the observation that is an image, uint8 [height, width, 3] per step; none if there are views."""
    arrays = {} if recording.views else recording.observations
    return {name: images(array) for name, array in arrays.items() if is_image(array)}


def seen_scalars(recording: Recording) -> dict[str, NDArray[np.float32]]:
    """Each array of the observation that is a single number per step, float32 [T]; none if there are views."""
    arrays = {} if recording.views else recording.observations
    return {name: array.reshape(-1).astype(np.float32) for name, array in arrays.items() if array[0].size == 1}
