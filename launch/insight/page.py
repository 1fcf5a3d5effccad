"""A recording as panels and images, and as one self-contained HTML file."""

import base64
import hashlib
import html
import io
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...agents.inside import Panel
from ...agents.inside.panels import most_active
from ...agents.specs import channels_first, image_size
from .recording import SINGLE, Mark, Pixels, Recording

HIGHEST = 0.995  # Quantile of the values at the end of the color scale, so that outliers do not make all others pale
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


def episode(
    recording: Recording, memory: Sequence[Panel], marks: Sequence[Mark], fact_values: dict[str, tuple[str, ...]]
) -> dict[str, Any]:
    """Return an episode in the format of the page's script."""
    files = Images()
    seen, scalars = dict[str, list[int]](), dict[str, list[float]]()
    for name, array in recording.observations.items():
        if is_image(array):
            seen[name] = files.indices(images(array))
        elif array[0].size == 1:
            scalars[name] = _rounded(array.reshape(-1))
    return {
        "steps": len(recording.values),
        "complete": recording.complete,
        "actions": recording.actions.tolist(),
        "values": _rounded(recording.values),
        "rewards": _rounded(recording.rewards),
        "facts": {
            name: {"values": series.tolist(), "names": fact_values.get(name, ())}
            for name, series in recording.facts.items()
        },
        "marks": [mark._asdict() for mark in marks],
        "scalars": scalars,
        "seen": seen,
        "boards": files.indices(recording.boards),
        "views": files.indices(recording.views),
        "images": [f"data:image/webp;base64,{base64.b64encode(data).decode()}" for data in files.files],
        "panels": [packed(panel) for panel in memory],
    }


def packed(panel: Panel) -> dict[str, Any]:
    """Return a panel with its values as bytes 0..255 between `low` and `high`; curves keep their values."""
    low, high = span(panel)
    plain = panel._asdict() | {"low": low, "high": high}
    if panel.kind == "lines":
        return plain | {"values": [_rounded(series) for series in panel.values]}
    scaled = np.clip((finite(panel.values, low, high) - low) / (high - low), 0, 1)
    return plain | {"values": base64.b64encode((255 * scaled).round().astype(np.uint8).tobytes()).decode()}


def span(panel: Panel) -> tuple[float, float]:
    """The values at the ends of a panel's color scale or axis."""
    if panel.scale == "share":
        return 0.0, 1.0
    values = panel.values[np.isfinite(panel.values)].astype(np.float64)
    if panel.kind == "lines":
        low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
        return low, high if high > low else low + 1.0
    sizes = np.abs(values) if len(values) else np.ones(1)
    high = float(np.quantile(sizes, HIGHEST)) or float(sizes.max()) or 1.0
    return -high, high


def finite(values: Any, low: float, high: float) -> Any:
    """Values of a panel, float64: nan is plotted as 0, inf at the end of the scale."""
    return np.nan_to_num(np.asarray(values, np.float64), nan=0.0, posinf=high, neginf=low)


def written(title: str, about: str, action_names: Sequence[str], episode: dict[str, Any]) -> str:
    folder = resources.files(str(__package__))
    template, style, script = (folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    content = {"title": title, "about": about, "actionNames": action_names, "episode": episode}
    # The data is JavaScript, which has NaN and Infinity. Only "<" can end a script element or begin a comment in it.
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    for name, text in {"TITLE": html.escape(title), "STYLE": style, "SCRIPT": script, "DATA": data}.items():
        template = template.replace(f"<!--{name}-->", text, 1)
    return template


class Images:
    """Distinct images of an episode as lossless WebP files."""

    def __init__(self) -> None:
        self.files: list[bytes] = []
        self._indices: dict[bytes, int] = {}

    def indices(self, images: Sequence[Pixels]) -> list[int]:
        """The index of each image, uint8 [height, width, 3], among the files."""
        indices: list[int] = []
        for pixels in images:
            key = hashlib.sha256(f"{pixels.shape}".encode() + pixels.tobytes()).digest()
            if key not in self._indices:
                self._indices[key] = len(self.files)
                file = io.BytesIO()
                Image.fromarray(pixels).save(file, "WEBP", lossless=True, method=2)
                self.files.append(file.getvalue())
            indices.append(self._indices[key])
        return indices


def _rounded(series: Any) -> list[float]:
    return [float(f"{x:.5g}") for x in series]
