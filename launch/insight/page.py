"""A recording as a figure, and as one self-contained HTML file."""

import base64
import hashlib
import html
import io
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from ...agents.inside import Panel, most_active
from ...agents.specs import channels_first, image_size
from .recording import SINGLE, Pixels, Recording

DPI, PAGE_DPI = 100, 160  # Resolution of figures in TensorBoard, and on a page
MOST_NAMES = 12  # Largest number of rows or curves with names
HIGHEST = 0.995  # Quantile of the values at the end of the color scale, so that outliers do not make all others pale
COLOR, MOST_CHANNELS = 3, 16
"""Three channels are red, green and blue; other numbers of channels, up to a limit, are gray images side by side."""
SHORTEST_SIDE = 160  # Pixels to which the shorter side of an image is enlarged
DIMMEST = 128  # Bytes that are all below this, such as object indices, are scaled to the full range of gray


def seen_panels(recording: Recording) -> list[Panel]:
    """Return panels of the policy, of value and reward, and of each vector of the observation."""
    gaussian = recording.actions.dtype.kind == "f"
    note = "Means and logarithms of standard deviations." if gaussian else "Probability of every action."
    scores = np.stack([recording.values, recording.rewards])
    explanation = "The predicted value, and the reward received with the observation."
    panels = [
        Panel("policy", note, "heat", recording.probabilities.T, recording.options, "signed" if gaussian else "share"),
        Panel("value and reward", explanation, "lines", scores, ("value", "reward")),
    ]
    for name, array in recording.observations.items():
        if array[0].size > 1 and not is_image(array):
            title = name if name == SINGLE else f"{SINGLE}: {name}"
            series = array.reshape(len(array), -1).T.astype(np.float32)
            panels.append(most_active(title, "values of the agent's observation", "value", series))
    return panels


def figure(panels: Sequence[Panel], title: str = "") -> Figure:
    """Plot panels over the steps of an episode, one below the other. Values that are not finite leave gaps."""
    heights = [0.9 if x.kind == "lines" else np.clip(0.1 * len(x.labels), 0.5, 2.0) for x in panels]
    plot = Figure((11, sum(heights) + 0.35 * len(panels) + 0.6), DPI, layout="constrained")
    axes = plot.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for panel, axis in zip(panels, axes, strict=True):
        values = np.where(np.isfinite(panel.values), panel.values.astype(np.float64), np.nan)
        name = panel.title
        if panel.kind == "lines":
            axis.plot(values.T, linewidth=1, label=panel.labels)
            if len(panel.labels) <= MOST_NAMES:
                axis.legend(fontsize=6, loc="upper left", ncols=len(panel.labels))
        else:
            sizes = np.abs(values[np.isfinite(values)])
            shares = panel.scale == "share" or not sizes.any()
            high = 1.0 if shares else float(np.quantile(sizes, HIGHEST) or sizes.max())
            low, colors = (0.0, "inferno") if panel.scale == "share" else (-high, "RdBu_r")
            axis.imshow(values, colors, aspect="auto", interpolation="nearest", vmin=low, vmax=high)
            rows = [row for row, label in enumerate(panel.labels) if label]
            rows = rows[:: -(-len(rows) // MOST_NAMES) or 1]
            axis.set_yticks(rows, [panel.labels[row] for row in rows])
            name += f", {low:.3g} to {high:.3g}"
        axis.set_title(f"{name}. {panel.note}", fontsize=7, loc="left", parse_math=False)
        axis.tick_params(labelsize=6)
    axes[0].set_xlim(-0.5, panels[0].values.shape[1] - 0.5)
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    plot.suptitle(title, fontsize=8, parse_math=False)
    return plot


def written(title: str, about: str, recording: Recording, panels: Sequence[Panel]) -> str:
    """Return the page: images, a table and the figure of all panels, with a cursor at the selected step."""
    plot, file = figure(panels), io.BytesIO()
    plot.savefig(file, format="png", dpi=PAGE_DPI)  # pyright: ignore[reportUnknownMemberType]
    axis = plot.axes[0].get_position()
    pixels = {"the whole board": recording.boards}
    pixels |= {name: images(array) for name, array in recording.observations.items() if is_image(array)}
    pixels |= {"the agent's view": recording.views}
    files: dict[str, str] = {}
    frames = {name: [_add(frame, files) for frame in series] for name, series in pixels.items() if series}
    content = {
        "title": title,
        "about": about,
        "steps": len(recording.values),
        "table": table(recording),
        "frames": frames,
        "files": files,
        "figure": _uri("png", file.getvalue()),
        "axis": [axis.x0, axis.x1],
    }
    # Only "<" can end a script element or begin a comment in it.
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    template = resources.files(str(__package__)).joinpath("page.html").read_text("utf-8")
    return template.replace("<!--TITLE-->", html.escape(title), 1).replace("<!--DATA-->", data, 1)


def table(recording: Recording) -> dict[str, list[str]]:
    """Values of every step by name, as text."""
    last, single = len(recording.values) - 1, recording.actions.shape[1] == 1 and recording.actions.dtype.kind == "i"
    actions = [recording.options[x[0]] if single else ", ".join(_texts(x)) for x in recording.actions]
    if recording.complete:
        actions[-1] = "none, the episode is over"
    rows = {
        "step": [f"{step} of {last}" for step in range(last + 1)],
        "action": actions,
        "value": _texts(recording.values),
        "reward": _texts(recording.rewards),
        "return so far": _texts(np.cumsum(np.append(0.0, recording.rewards[1:]))),
    }
    rows |= {name.replace("_", " "): texts for name, texts in recording.facts.items()}
    scalars = {name: array.reshape(-1) for name, array in recording.observations.items() if array[0].size == 1}
    return rows | {name: _texts(array) for name, array in scalars.items()}


def _texts(values: Iterable[Any]) -> list[str]:
    return [f"{x:.5g}" for x in values]


def _add(pixels: Pixels, files: dict[str, str]) -> str:
    """Return the hash of an image, by which `files` has it as lossless WebP; add it if it is new."""
    key = hashlib.blake2b(f"{pixels.shape}".encode() + pixels.tobytes(), digest_size=12).hexdigest()
    if key not in files:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "WEBP", lossless=True, method=2)
        files[key] = _uri("webp", file.getvalue())
    return key


def _uri(kind: str, image: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


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
