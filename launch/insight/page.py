"""A recording as one self-contained HTML file, with data and images."""

import base64
import hashlib
import html
import io
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
from PIL import Image

from ...agents.inside import Panel
from .observations import images, is_image
from .recording import Mark, Pixels, Recording

HIGHEST = 0.995  # Quantile of the values at the end of the color scale, so that outliers do not make all others pale


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
    return (-high if panel.scale == "signed" else 0.0), high


def finite(values: Any, low: float, high: float) -> Any:
    """Values of a panel, float64: nan is plotted as 0, inf at the end of the scale."""
    return np.nan_to_num(np.asarray(values, np.float64), nan=0.0, posinf=high, neginf=low)


def written(title: str, about: str, action_names: Sequence[str], episode: dict[str, Any]) -> str:
    """Return the page as HTML."""
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
