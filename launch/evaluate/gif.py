"""Animations of a playing agent: its view next to the whole board."""

import io
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ...actors.actor import Actor
from ...base.errors import refuse
from ...envs.arrays import Array

HEIGHT, MARGIN, TEXT = 360, 12, 16  # Pixels: the images, the margin around them, the font
COLORS = 96
BACKGROUND, WORDS = (24, 24, 27), (235, 235, 235)
MILLISECONDS, LAST_MILLISECONDS = 150, 1500  # Duration of a frame, and of the last one of an episode
MOST_FRAMES = 600  # Maximum number of frames


def encoded(shown: list[tuple[Image.Image, int]]) -> bytes:
    """Frames, each with its milliseconds, as an animated GIF."""
    frames, durations = [frame for frame, _ in shown], [duration for _, duration in shown]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return file.getvalue()


def film(actor: Actor, episodes: int) -> list[tuple[Image.Image, int]]:
    """Frames of the first `episodes` episodes of an actor's first environment, each with its milliseconds.

    The actor is new, with an unroll length of 1, so that every step has a frame. If the agent observes the whole
    board, it is shown once. Raises ValueError if the environment renders no images.
    """
    if actor.unroll_length != 1:
        raise ValueError(f"an actor with unrolls of {actor.unroll_length} steps; expected 1, for an image of each")
    moments = list(islice(_moments(actor, episodes), MOST_FRAMES))
    once = all(np.array_equal(moment.seen, moment.board) for moment in moments)
    return [(_frame(moment, once), moment.milliseconds) for moment in moments]


class _Moment(NamedTuple):
    seen: Array
    board: Array  # Images of environment 0, uint8 [H, W, 3]: the agent's view, and the whole board
    words: str
    milliseconds: int


def _moments(actor: Actor, episodes: int) -> Iterator[_Moment]:
    for number in range(1, episodes + 1):
        total, step, over = 0.0, 0, False
        while True:
            caption = f"episode {number}   step {step}   return {total:g}{'   end' if over else ''}"
            view, board = (_image(actor.batch, full) for full in (False, True))
            yield _Moment(view, board, caption, LAST_MILLISECONDS if over else MILLISECONDS)
            row = actor.unroll().env
            if over:
                break  # this step was the one whose action is ignored: the board is the next episode's
            over = bool(row.terminated[1, 0] | row.truncated[1, 0])
            total, step = total + float(row.reward[1, 0]), step + 1


def _frame(moment: _Moment, once: bool) -> Image.Image:
    """Both images of a moment, or one if they are equal, with a caption."""
    arrays = [moment.board] if once else [moment.seen, moment.board]
    images = [_of_height(Image.fromarray(array)) for array in arrays]
    width = sum(image.width for image in images) + MARGIN * (len(images) + 1)
    frame = Image.new("RGB", (width, HEIGHT + 3 * MARGIN + TEXT), BACKGROUND)
    left = MARGIN
    for panel in images:
        frame.paste(panel, (left, MARGIN))
        left += panel.width + MARGIN
    pen = ImageDraw.Draw(frame)
    pen.text((MARGIN, HEIGHT + 2 * MARGIN), moment.words, WORDS, ImageFont.load_default(TEXT))
    return frame.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)


def _of_height(image: Image.Image) -> Image.Image:
    return image.resize((round(image.width * HEIGHT / image.height), HEIGHT), Image.Resampling.BILINEAR)


def _image(batch: Any, full: bool) -> Array:
    refuse(not hasattr(batch, "draw"), "this environment renders no images")
    try:
        return batch.draw(0, full=full)
    except NotImplementedError as problem:
        raise ValueError("this environment renders no images") from problem
