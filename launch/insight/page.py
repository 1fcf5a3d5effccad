"""Recordings as one self-contained HTML file, with data and images."""

import base64
import hashlib
import html
import io
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
from PIL import Image

from ...agents.inside import Panel
from .observations import seen_images, seen_scalars
from .recording import Mark, Pixels, Recording

HIGHEST = 0.995  # Quantile of the values at the end of the color scale, so that outliers do not make all others pale
WIDEST = 960  # Maximum width of an image in pixels


def episode(
    recording: Recording, memory: Sequence[Panel], marks: Sequence[Mark], fact_values: dict[str, tuple[str, ...]]
) -> dict[str, Any]:
    """Return one episode in the format of the page's script."""
    images = Images()
    boards, views = ([images.index(image) for image in shown] for shown in (recording.boards, recording.views))
    return {
        "steps": len(recording.values),
        "fields": recording.fields,
        "actions": recording.actions.tolist(),
        "values": _rounded(recording.values),
        "rewards": _rounded(recording.rewards),
        "facts": {
            name: {"values": series.tolist(), "names": fact_values.get(name, ())}
            for name, series in recording.facts.items()
        },
        "marks": [mark._asdict() for mark in marks],
        "scalars": {name: _rounded(series) for name, series in seen_scalars(recording).items()},
        "seen": {name: [images.index(image) for image in shown] for name, shown in seen_images(recording).items()},
        "boards": boards,
        "views": views,
        "images": [f"data:image/webp;base64,{base64.b64encode(data).decode()}" for data in images.files],
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


def written(title: str, lines: Sequence[str], action_names: Sequence[str], episodes: Sequence[dict[str, Any]]) -> str:
    """Return the page as HTML."""
    folder = resources.files(str(__package__))
    template, style, script = (
        folder.joinpath(name).read_text("utf-8") for name in ("page.html", "page.css", "page.js")
    )
    content = {"title": title, "lines": lines, "actionNames": action_names, "episodes": episodes}
    data = json.dumps(_plain(content), separators=(",", ":"), allow_nan=False)
    # Only "<" can end a script element or begin a comment in it.
    parts = {"TITLE": html.escape(title), "STYLE": style, "SCRIPT": script, "DATA": data.replace("<", "\\u003c")}
    for name, text in parts.items():
        template = template.replace(f"<!--{name}-->", text, 1)
    return template


class Images:
    """Distinct images of an episode as lossless WebP files."""

    def __init__(self) -> None:
        self.files: list[bytes] = []
        self._indices: dict[tuple[tuple[int, ...], bytes], int] = {}

    def index(self, image: Pixels) -> int:
        """The index of an image, uint8 [height, width, 3], among the files."""
        pixels = _shrink(image)
        key = pixels.shape, hashlib.blake2b(pixels.tobytes(), digest_size=16).digest()
        index = self._indices.setdefault(key, len(self.files))
        if index == len(self.files):
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "WEBP", lossless=True, method=2)
            self.files.append(file.getvalue())
        return index


def _shrink(image: Pixels) -> Pixels:
    """Shrink an image to a width of at most WIDEST pixels."""
    if image.shape[1] <= WIDEST:
        return image
    size = (WIDEST, round(image.shape[0] * WIDEST / image.shape[1]))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))


def _plain(value: Any) -> Any:
    """Replace non-finite values in nested dicts and sequences with None: JSON has neither nan nor inf."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rounded(series: Any) -> list[float]:
    return [float(f"{x:.5g}") for x in series]
