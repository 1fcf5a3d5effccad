"""An episode recorded step by step, as a figure, and as one self-contained HTML file.

An actor plays the episode as in training and in `rl-eval`, one step per unroll; a hook records the core during this
episode only. For `--look-every`, a separate actor plays with the newest weights between two updates, without affecting
the random streams of training.
"""

import base64
import hashlib
import html
import io
import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ...actors.actor import Actor
from ...agents.cores.core import state_leaves
from ...agents.images import channels_first, image_size
from ...agents.inside import Panel, Trace, most_active, over_time, recorded, statistics
from ...agents.inside import panels as state_panels
from ...agents.specs import BoxSpec, log_policy
from ..config.run_config import RunConfig
from ..metrics.member import Member
from ..runs.trained import actor_in_training

Pixels = NDArray[np.uint8]
MOST_STEPS = 2000  # Maximum steps of an episode
TAG = "memory"  # Tag of the image in TensorBoard during training
MOST_WATCHED = 300  # Maximum steps of its episode
LARGEST_SHARE = 0.01  # Maximum fraction of the run's time for images: the next image is delayed accordingly
SINGLE = "observation"  # Name of an observation that is not a dict
DPI, PAGE_DPI = 100, 160  # Resolution of figures in TensorBoard, and on a page
MOST_NAMES = 12  # Largest number of rows or curves with names
HIGHEST = 0.995  # Quantile of the values at the end of the color scale, so that outliers do not make all others pale
COLOR, MOST_CHANNELS = 3, 16
"""Three channels are red, green and blue; other numbers of channels, up to a limit, are gray images side by side."""
SHORTEST_SIDE = 160  # Pixels to which the shorter side of an image is enlarged
DIMMEST = 128  # Bytes that are all below this, such as object indices, are scaled to the full range of gray


class Recording(NamedTuple):
    """Steps 0..T-1 of one episode; the last one has the final observation."""

    boards: list[Pixels]  # The whole board at every step; empty for an environment without images
    views: list[Pixels]  # The observation as an image; empty if the environment renders only the whole board
    observations: dict[str, NDArray[Any]]  # [T, ...]: each array of the observation, by name; empty if there are views
    options: list[str]  # Names of the A options, or of a Box's parameters
    probabilities: NDArray[np.float32]  # [T, A]: probability of every option; for a Box its Gaussians' parameters
    actions: NDArray[Any]  # [T, K]: the actions, by choice
    values: NDArray[np.float32]  # [T]: the value estimates
    rewards: NDArray[np.float32]  # [T]: the reward received with the observation
    facts: dict[str, list[str]]  # T values of each of the environment's facts about the level and the step, by name
    complete: bool  # Whether the episode ended; otherwise, it was cut off
    trace: Trace  # Every step of the core


def record(actor: Actor, *, images: bool = True, most: int = MOST_STEPS) -> Recording:
    """Record up to `most` steps of the first episode of an actor's only environment, with an unroll length of 1."""
    batch: Any = actor.batch
    spec = actor.agent.action_spec
    boards: list[Pixels] = []
    views: list[Pixels] = []
    steps: list[Any] = []  # Unrolls of one step
    facts: dict[str, list[str]] = {}
    over = False
    with recorded(actor.agent.core) as calls:
        while not over and len(steps) < most:
            if images and (board := rendered(batch, True)) is not None:
                boards.append(board)
            if images and getattr(batch, "draws_views", True) and (view := rendered(batch, False)) is not None:
                views.append(view)
            for name, values in (batch.facts() if hasattr(batch, "facts") else {}).items():
                names = batch.fact_values[name]
                facts.setdefault(name, []).append(names[values[0]] if names else str(values[0]))
            steps.append(actor.unroll())
            # The action of the last step is ignored, and the board then is the next episode's.
            over = bool(steps[-1].env.terminated[0, 0] | steps[-1].env.truncated[0, 0])
    policies = [log_policy(spec, step.agent.logits[0, 0]) for step in steps]
    observations = [named_arrays(step.env.observation) for step in steps]
    return Recording(
        boards,
        views,
        {} if views else {name: np.stack([arrays[name] for arrays in observations]) for name in observations[0]},
        option_names(actor),
        np.stack([(policy if isinstance(spec, BoxSpec) else policy.exp()).numpy() for policy in policies]),
        np.stack([step.agent.action[0, 0].reshape(-1).numpy() for step in steps]),
        np.stack([step.agent.value[0, 0].numpy() for step in steps]),
        np.stack([step.env.reward[0, 0].numpy() for step in steps]),
        facts,
        over,
        over_time(calls, 0),
    )


def option_names(actor: Actor) -> list[str]:
    """Names of all actions, of the options of several choices, or of the parameters of a Box's Gaussians."""
    spec = actor.agent.action_spec
    if isinstance(spec, BoxSpec):
        return [f"{name} {k + 1}" for name in ("mean", "log deviation") for k in range(spec.size)]
    if len(spec.choices) > 1:
        return [f"choice {k + 1}: {option}" for k, options in enumerate(spec.choices) for option in range(options)]
    return list(getattr(actor.batch, "action_names", ())) or [str(option) for option in range(sum(spec.choices))]


def named_arrays(observation: Any, name: str = "") -> dict[str, NDArray[Any]]:
    """Return the arrays of environment 0 at step 0 of an unroll, by name; dots join keys of nested dicts."""
    if isinstance(observation, Tensor):
        return {name or SINGLE: observation[0, 0].numpy()}
    arrays: dict[str, NDArray[Any]] = {}
    for key, part in observation.items():
        arrays |= named_arrays(part, f"{name}.{key}" if name else str(key))
    return arrays


def rendered(batch: Any, full: bool) -> Pixels | None:
    try:
        return batch.draw(0, full=full)
    except (NotImplementedError, ValueError):  # Gymnasium environments raise ValueError
        return None


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
    content = {"title": title, "about": about, "steps": len(recording.values), "table": table(recording)}
    content |= {"frames": frames, "files": files, "figure": _uri("png", file.getvalue()), "axis": [axis.x0, axis.x1]}
    # Only "<" can end a script element or begin a comment in it.
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    template = resources.files(str(__package__)).joinpath("page.html").read_text("utf-8")
    return template.replace("<!--TITLE-->", html.escape(title), 1).replace("<!--DATA-->", data, 1)


def table(recording: Recording) -> dict[str, list[str]]:
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
    """uint8 [height, width, 3] for each step of a leaf [T, ...]; frames and gray channels are placed side by side."""
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


class Watcher:
    """`--look-every`: images of the recurrent state on one level, and metrics of the state."""

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
            recording = record(actor, images=False, most=MOST_WATCHED)
        member.accumulator.note(statistics(recording.trace))
        if member.writer is None:
            return
        shown = [*seen_panels(recording)[:2], *state_panels(actor.agent.core, recording.trace)]
        title = f"{self.name}, step {member.learner.steps:,}, return {recording.rewards[1:].sum():.3g}"
        plot, file = figure(shown, title), io.BytesIO()
        plot.savefig(file, format="png")  # pyright: ignore[reportUnknownMemberType]
        width, height = (round(DPI * inches) for inches in plot.get_size_inches())
        member.writer.image(member.learner.steps, TAG, file.getvalue(), width, height)
