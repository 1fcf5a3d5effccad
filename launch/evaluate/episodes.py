"""Statistics of a trained agent's episodes, means and rates with 95% confidence intervals, and animations of episodes:
the agent's view next to the whole board, for `--gif` of rl-eval and `--video-every` of rl-train."""

import io
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy import stats

from ...actors.actor import Actor
from ...actors.episodes import Episodes, known
from ...actors.unroll import EPISODE_COLUMNS
from ...base.errors import EngramError
from ...envs.arrays import Array
from ...envs.registration import can_draw
from ..config.run_config import RunConfig
from ..metrics.member import Member
from ..runs.trained import actor_in_training

CONFIDENCE = 0.95
RATES = ("solved",)  # Episode fields that are 0 or 1
MOST_VALUES = 30  # Maximum number of values of a field by which results are split

TAG = "eval/video"  # Name of the videos of a run
HEIGHT, MARGIN, TEXT = 360, 12, 16  # Pixels: height of the images, margin around them, size of the font
COLORS, BACKGROUND, INK = 96, (24, 24, 27), (235, 235, 235)
MILLISECONDS, LAST_MILLISECONDS = 150, 1500  # Duration of a frame, and of an episode's last frame
MOST_FRAMES = 600  # Maximum number of frames

Frames = list[tuple[Image.Image, int]]  # Images, each with its milliseconds


class Estimate(NamedTuple):
    """A mean and its 95% confidence interval, whose bounds are nan for a single episode."""

    mean: float
    low: float
    high: float

    def plain(self) -> dict[str, float | None]:
        """The values for JSON, which has no nan."""
        return {name: x if np.isfinite(x) else None for name, x in self._asdict().items()}


def mean_interval(values: NDArray[np.floating[Any]]) -> Estimate:
    """The mean of independent values [K], with Student's t interval."""
    values = values.astype(np.float64)
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean, np.nan, np.nan)
    half = float(stats.sem(values) * stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1))
    return Estimate(mean, mean - half, mean + half)


def rate_interval(outcomes: NDArray[np.floating[Any]]) -> Estimate:
    """The rate of ones among independent outcomes [K] of 0 or 1, with Wilson's score interval (Wilson 1927)."""
    result = stats.binomtest(int(np.sum(outcomes)), len(outcomes))
    return Estimate(float(result.statistic), *map(float, result.proportion_ci(CONFIDENCE, "wilson")))


class Group(NamedTuple):
    """Estimates from episodes of one kind."""

    episodes: int
    estimates: dict[str, Estimate]
    """Estimates of `return`, `length` and the environment's episode fields, if any episode has them."""

    def plain(self) -> dict[str, Any]:
        rounded = {name: Estimate(*(round(x, 6) for x in y)).plain() for name, y in self.estimates.items()}
        return {"episodes": self.episodes} | rounded


class Summary(NamedTuple):
    """Estimates from all episodes, and from those of each kind of level."""

    all: Group
    split: dict[str, dict[int, Group]]
    """Estimates by level field, then by the field's value."""

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Estimates of all episodes: `return`, `length`, and the environment's fields, such as `solved`."""
        return self.all.estimates

    def plain(self, member: int) -> dict[str, Any]:
        """The results of a member for JSON: all episodes, and those of each kind of level."""
        split = {name: {k: group.plain() for k, group in groups.items()} for name, groups in self.split.items()}
        return {"member": member, "all": self.all.plain(), "split": split}

    def __str__(self) -> str:
        parts = [f"{name} {x.mean:.3f} [{x.low:.3f}, {x.high:.3f}]" for name, x in self.estimates.items()]
        return f"{self.all.episodes:,} episodes: {', '.join(parts)}"


def summarize(
    episodes: Episodes, fields: Sequence[str], level_fields: Sequence[str], *, by_environment: bool = False
) -> Summary:
    """Compute estimates from the episodes of `play`, with columns named `fields`, split by those of `level_fields` with
    few integer values. `by_environment`: each environment keeps its level, so its episodes are not independent, and
    estimates are over the means of the environments."""
    names = (*EPISODE_COLUMNS[1:], *fields)
    columns = dict(zip(names, episodes[:, 1:].T, strict=True))
    reported = dict(zip(names, known(episodes[:, 1:]).T, strict=True))
    outcomes = {name: column for name, column in columns.items() if name not in level_fields}

    def group(chosen: NDArray[np.bool_]) -> Group:
        estimates: dict[str, Estimate] = {}
        for name, column in outcomes.items():
            counted = chosen & reported[name]
            values = column[counted]
            if by_environment:
                _, which, count = np.unique(episodes[counted, 0], return_inverse=True, return_counts=True)
                values = np.bincount(which, values) / count
            if len(values):
                rate = name in RATES and not by_environment
                estimates[name] = rate_interval(values) if rate else mean_interval(values)
        return Group(int(chosen.sum()), estimates)

    split: dict[str, dict[int, Group]] = {}
    for name in level_fields:
        values = np.unique(columns[name])
        if len(values) <= MOST_VALUES and (values == np.round(values)).all():
            split[name] = {int(value): group(columns[name] == value) for value in values}
    return Summary(group(np.ones(len(episodes), np.bool_)), split)


def encoded(shown: Frames) -> bytes:
    frames, durations = zip(*shown, strict=True)
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return file.getvalue()


def film(actor: Actor, episodes: int) -> Frames:
    """Return frames of the first `episodes` episodes of a new actor's first environment, with an unroll length of 1. If
    the agent observes the whole board, only the board is shown. Raises ValueError if the environment has no images."""
    batch: Any = actor.batch
    moments: list[tuple[Array, Array, str, int]] = []  # The agent's view, the whole board, caption, milliseconds
    episode, total, step, over = 1, 0.0, 0, False
    while episode <= episodes and len(moments) < MOST_FRAMES:
        try:
            view, board = batch.draw(0, full=False), batch.draw(0, full=True)
        except NotImplementedError as problem:
            raise EngramError("this environment renders no images") from problem
        caption = f"episode {episode}   step {step}   return {total:g}{'   end' if over else ''}"
        moments.append((view, board, caption, LAST_MILLISECONDS if over else MILLISECONDS))
        env = actor.unroll().env
        if over:  # the action of this step was ignored: the board is the next episode's
            episode, total, step, over = episode + 1, 0.0, 0, False
        else:
            over = bool(env.terminated[1, 0] | env.truncated[1, 0])
            total, step = total + float(env.reward[1, 0]), step + 1
    once = all(np.array_equal(view, board) for view, board, _, _ in moments)
    return [(_frame([board] if once else [view, board], caption), time) for view, board, caption, time in moments]


def _frame(arrays: list[Array], caption: str) -> Image.Image:
    """Images uint8 [H, W, 3] side by side, with a caption."""
    images = [Image.fromarray(array) for array in arrays]
    widths = [round(image.width * HEIGHT / image.height) for image in images]
    frame = Image.new("RGB", (sum(widths) + MARGIN * (len(images) + 1), HEIGHT + 3 * MARGIN + TEXT), BACKGROUND)
    left = MARGIN
    for image, width in zip(images, widths, strict=True):
        frame.paste(image.resize((width, HEIGHT), Image.Resampling.BILINEAR), (left, MARGIN))
        left += width + MARGIN
    ImageDraw.Draw(frame).text((MARGIN, HEIGHT + 2 * MARGIN), caption, INK, ImageFont.load_default(TEXT))
    return frame.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)


class Camera:
    """Records evaluation episodes of the newest weights between two updates."""

    def __init__(self, config: RunConfig) -> None:
        if not can_draw(config.env):
            raise EngramError(f"--video-every {config.video_every}: {config.env} declares no images (rgb_array)")
        self.config = config
        self.factory = replace(config.factory(), imitate="", num_envs=1, unroll_length=1)

    def look(self, member: Member, before: int, at_step: Callable[[], None] = lambda: None) -> None:
        """Record a video of a member if one became due between step `before` and its current step; call `at_step`
        after each step of the environment."""
        seed = member.due_seed(before, self.config.video_every)
        if member.writer is None or seed is None:
            return
        try:
            with closing(actor_in_training(self.factory, member.learner.agent, seed)) as actor:
                actor.call_at_steps(at_step)
                frames = film(actor, 1)
        except ValueError as problem:
            member.notices.append(f"no video: {problem}")
        else:
            member.writer.video(member.steps, TAG, encoded(frames), *frames[0][0].size)
