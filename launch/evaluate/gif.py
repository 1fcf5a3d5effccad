"""Animations of an agent, with its view next to the whole board: `--gif` of rl-eval, `--video-every` of rl-train."""

import io
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, NamedTuple

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
    """Frames as an animated GIF."""
    frames, durations = [frame for frame, _ in shown], [duration for _, duration in shown]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return file.getvalue()


class _Moment(NamedTuple):
    view: Array
    board: Array  # Images of environment 0, uint8 [H, W, 3]: the agent's view, and the whole board
    caption: str
    milliseconds: int


def film(actor: Actor, episodes: int) -> Frames:
    """Return frames of the first `episodes` episodes of an actor's first environment.

    The actor is new, with an unroll length of 1, so that every step has a frame. If the agent observes the whole
    board, only the board is shown. Raises ValueError if the environment renders no images.
    """
    if actor.unroll_length != 1:
        raise ValueError(f"the actor's unroll_length is {actor.unroll_length}; expected 1, for an image of every step")
    moments: list[_Moment] = []
    episode, total, step, over = 1, 0.0, 0, False
    while episode <= episodes and len(moments) < MOST_FRAMES:
        caption = f"episode {episode}   step {step}   return {total:g}{'   end' if over else ''}"
        view, board = (_image(actor.batch, full) for full in (False, True))
        moments.append(_Moment(view, board, caption, LAST_MILLISECONDS if over else MILLISECONDS))
        env = actor.unroll().env
        if over:  # the action of this step was ignored: the board is the next episode's
            episode, total, step, over = episode + 1, 0.0, 0, False
        else:
            over = bool(env.terminated[1, 0] | env.truncated[1, 0])
            total, step = total + float(env.reward[1, 0]), step + 1
    once = all(np.array_equal(moment.view, moment.board) for moment in moments)
    return [(_frame(moment, once), moment.milliseconds) for moment in moments]


def _frame(moment: _Moment, once: bool) -> Image.Image:
    """Both images of a moment, or one if they are equal, with a caption."""
    images = [Image.fromarray(array) for array in ([moment.board] if once else [moment.view, moment.board])]
    images = [x.resize((round(x.width * HEIGHT / x.height), HEIGHT), Image.Resampling.BILINEAR) for x in images]
    width = sum(image.width for image in images) + MARGIN * (len(images) + 1)
    frame = Image.new("RGB", (width, HEIGHT + 3 * MARGIN + TEXT), BACKGROUND)
    left = MARGIN
    for image in images:
        frame.paste(image, (left, MARGIN))
        left += image.width + MARGIN
    pen = ImageDraw.Draw(frame)
    pen.text((MARGIN, HEIGHT + 2 * MARGIN), moment.caption, INK, ImageFont.load_default(TEXT))
    return frame.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)


def _image(batch: Any, full: bool) -> Array:
    with suppress(NotImplementedError):
        if hasattr(batch, "draw"):
            return batch.draw(0, full=full)
    raise EngramError("this environment renders no images")


class Camera:
    """A recorder of evaluation episodes of the newest weights, between two updates and in a separate environment. The
    levels depend on the run's seed and on the number of earlier due videos. An episode longer than 600 steps is cut
    off."""

    def __init__(self, config: RunConfig) -> None:
        if not can_draw(config.env):
            raise EngramError(f"--video-every {config.video_every}: {config.env} declares no images (rgb_array)")
        self.config = config
        self.factory = replace(config.factory(), imitate="", num_envs=1, unroll_length=1)

    def look(self, member: Member, before: int, at_step: Callable[[], None] = lambda: None) -> None:
        """Record a video of a member if one became due between step `before` and its current step.

        `at_step` is called after each step of the environment; an exception from it ends the video.
        """
        every = self.config.video_every
        videos = member.steps // every
        due = videos > before // every or (member.done and before < member.steps)
        if member.writer is None or not due:
            return
        seed = int(np.random.SeedSequence((self.config.seed, videos)).generate_state(1)[0])
        try:
            with closing(actor_in_training(self.factory, member.learner.agent, seed)) as actor:
                actor.call_at_steps(at_step)
                frames = film(actor, 1)
        except ValueError as problem:
            member.notices.append(f"no video: {problem}")
        else:
            member.writer.video(member.steps, TAG, encoded(frames), *frames[0][0].size)
