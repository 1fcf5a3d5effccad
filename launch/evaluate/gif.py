"""Animations of an agent, with its view next to the whole board: `--gif` of rl-eval, `--video-every` of rl-train."""

import io
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ...actors.actor import Actor
from ...base.errors import EngramError
from ...envs.arrays import Array
from ...envs.registration import can_draw
from ..config.run_config import RunConfig
from ..metrics.member import Member
from ..runs.trained import actor_in_training

TAG = "eval/video"  # Name of the videos of a run
HEIGHT, MARGIN, TEXT = 360, 12, 16  # Pixels: height of the images, margin around them, size of the font
COLORS, BACKGROUND, INK = 96, (24, 24, 27), (235, 235, 235)
MILLISECONDS, LAST_MILLISECONDS = 150, 1500  # Duration of a frame, and of an episode's last frame
MOST_FRAMES = 600  # Maximum number of frames

Frames = list[tuple[Image.Image, int]]  # Images, each with its milliseconds


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
