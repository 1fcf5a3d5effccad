"""Moving pictures of an agent at play: what it sees beside the whole board."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from ...actors.actor import Actor

HEIGHT, MARGIN, TEXT = 360, 12, 16
"""Pixels: the pictures, the space around them, the letters."""
COLOURS = 96
BACKGROUND, WORDS = (24, 24, 27), (235, 235, 235)
MILLISECONDS, LAST_MILLISECONDS = 150, 1500
"""How long a frame is shown, and the last one of an episode."""
MOST_FRAMES = 600
"""A longer film is cut off."""


def record(actor: Actor, file: Path, episodes: int) -> None:
    """Write an animated GIF of the first `episodes` episodes of an actor's first environment.

    Args:
        actor: fresh, with an unroll length of 1, so that there is a picture of every step.
        file: where to write.
        episodes: how many, at least 1.

    Raises:
        ValueError: the world draws no pictures.
        OSError: the file cannot be written.
    """
    if actor.unroll_length != 1:
        raise ValueError(f"an actor with unrolls of {actor.unroll_length} steps; expected 1, for a picture of each")
    shown = list(islice(film(actor, episodes), MOST_FRAMES))
    frames, durations = [frame for frame, _ in shown], [duration for _, duration in shown]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)


def film(actor: Actor, episodes: int) -> Iterator[tuple[Image.Image, int]]:
    """Frames of the first `episodes` episodes, and how many milliseconds each is shown; an actor as for `record`."""
    for number in range(1, episodes + 1):
        total, step, over = 0.0, 0, False
        while True:
            words = f"episode {number}   step {step}   return {total:g}{'   end' if over else ''}"
            yield _frame(actor.batch, words), LAST_MILLISECONDS if over else MILLISECONDS
            row = actor.unroll().env
            if over:
                break  # this step was the one whose action is ignored: the board is the next episode's
            over = bool(row.terminated[1, 0] | row.truncated[1, 0])
            total, step = total + float(row.reward[1, 0]), step + 1


def _frame(batch: Any, words: str) -> Image.Image:
    """The observation of environment 0, the whole board, and a line of words."""
    pictures = [_picture(batch, full) for full in (False, True)]
    width = sum(picture.width for picture in pictures) + MARGIN * 3
    frame = Image.new("RGB", (width, HEIGHT + 3 * MARGIN + TEXT), BACKGROUND)
    left = MARGIN
    for picture in pictures:
        frame.paste(picture, (left, MARGIN))
        left += picture.width + MARGIN
    pen = ImageDraw.Draw(frame)
    pen.text((MARGIN, HEIGHT + 2 * MARGIN), words, WORDS, ImageFont.load_default(TEXT))
    return frame.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)


def _picture(batch: Any, full: bool) -> Image.Image:
    if not hasattr(batch, "draw"):
        raise ValueError("this world draws no pictures")
    try:
        image = Image.fromarray(batch.draw(0, full=full))
    except NotImplementedError as problem:
        raise ValueError("this world draws no pictures") from problem
    return image.resize((round(image.width * HEIGHT / image.height), HEIGHT), Image.Resampling.BILINEAR)
