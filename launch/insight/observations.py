"""Policy, value, reward and observations of an episode, as panels and images."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.inside import Panel
from ...agents.inside.panels import most_active
from ...agents.specs import channels_first, image_size
from .recording import SINGLE, Pixels, Recording

COLOR, MOST_CHANNELS = 3, 16
"""Three channels are red, green and blue; other numbers of channels, up to a limit, are gray images side by side."""
SHORTEST_SIDE = 160  # Pixels to which the shorter side of an image is enlarged
DIMMEST = 128  # Bytes that are all below this, such as object indices, are scaled to the full range of gray


def seen_panels(recording: Recording, options: Sequence[str]) -> list[Panel]:
    """Return panels, the policy first: the page shows the bars of a step from it."""
    policy = recording.probabilities.T.copy()
    gaussian = recording.actions.dtype.kind == "f"
    note = "Means and logarithms of standard deviations." if gaussian else "Probability of every action."
    scores = np.stack([recording.values, recording.rewards])
    explanation = "The predicted value, and the reward received with the observation."
    panels = [
        Panel("policy", note, "heat", policy, tuple(options), "signed" if gaussian else "share"),
        Panel("value and reward", explanation, "lines", scores, ("value", "reward")),
    ]
    for name, array in recording.observations.items():
        if array[0].size > 1 and not is_image(array):
            title = name if name == SINGLE else f"{SINGLE}: {name}"
            series = array.reshape(len(array), -1).T.astype(np.float32)
            panels.append(most_active(title, "values of the agent's observation", "value", series))
    return panels


def is_image(array: NDArray[Any]) -> bool:
    """Whether an array [T, ...] has an image per step: a plane of bytes, a few channels, or stacked frames."""
    shape = array.shape[1:]
    if len(shape) == 2:
        return array.dtype == np.uint8 and min(shape) > 1
    if len(shape) not in (3, 4):
        return False
    channels, rows, columns = image_size(shape[-3:], _first(shape))
    return 0 < channels <= MOST_CHANNELS and min(rows, columns) > 1


def images(array: NDArray[Any]) -> list[Pixels]:
    """uint8 [height, width, 3] for each step of an image leaf [T, ...]; frames and gray channels are placed side by
    side."""
    values = array if array.ndim > 3 else array[..., None]
    if _first(values.shape[1:]):
        values = np.moveaxis(values, -3, -1)
    if values.ndim == 5:
        values = np.concatenate(list(np.moveaxis(values, 1, 0)), axis=2)
    if values.shape[-1] != COLOR:
        values = np.concatenate(list(np.moveaxis(values, -1, 0)), axis=2)[..., None].repeat(COLOR, axis=-1)
    if values.dtype != np.uint8 or values.max(initial=0) < DIMMEST:
        values = np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
        low, high = min(0.0, float(values.min())), float(values.max())
        values = ((values - low) * (255 / max(high - low, 1e-9))).round().astype(np.uint8)
    times = -(-SHORTEST_SIDE // min(values.shape[1:3]))
    return [frame.repeat(times, axis=0).repeat(times, axis=1) for frame in values]


def _first(shape: tuple[int, ...]) -> bool:
    """Whether channels come before rows; if the shape is ambiguous, they come last."""
    try:
        return channels_first(shape[-3:], "auto")
    except ValueError:
        return False
