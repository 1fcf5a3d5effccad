"""A recording as a moving picture: board, view, and the first panels of the memory with the present step marked."""

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ...agents.inside import Panel
from . import drawing
from .recording import Picture, Recording

HEIGHT, MARGIN, TEXT, WIDTH = 230, 12, 15, 400
"""Pixels: the pictures, the space around them, the letters, the panels."""
BACKGROUND, WORDS, CURSOR = (24, 24, 27), (235, 235, 235), (251, 146, 60)
MILLISECONDS, LAST_MILLISECONDS = 120, 1500
MOST_FRAMES = 300
"""Of a longer episode every second step is shown, or every third."""
COLOURS = 96


def film(recording: Recording, shown: Sequence[Panel]) -> bytes:
    """An animated GIF. Raises ValueError in a world without pictures."""
    if not recording.boards:
        raise ValueError("this world draws no pictures")
    steps = range(0, len(recording.values), -(-len(recording.values) // MOST_FRAMES))
    heat = [panel for panel in shown[2:] if panel.kind == "heat"][:2]
    strips = [(panel.title, drawing.heat_map(panel, WIDTH, 130)) for panel in (shown[0], *heat)]
    frames = [_frame(recording, strips, step) for step in steps]
    durations = [MILLISECONDS] * (len(frames) - 1) + [LAST_MILLISECONDS]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return file.getvalue()


def _frame(recording: Recording, strips: Sequence[tuple[str, NDArray[np.uint8]]], step: int) -> Image.Image:
    boards = [_sized(pictures[step]) for pictures in (recording.boards, recording.views) if pictures]
    tall = sum(board.height + MARGIN for board in boards) + TEXT + MARGIN
    height = max(tall, sum(len(strip) + TEXT + MARGIN for _, strip in strips)) + MARGIN
    frame = Image.new("RGB", (2 * WIDTH + 3 * MARGIN, height), BACKGROUND)
    pen, font, top = ImageDraw.Draw(frame), ImageFont.load_default(TEXT), MARGIN
    for board in boards:
        frame.paste(board, (MARGIN + (WIDTH - board.width) // 2, top))
        top += board.height + MARGIN
    total = float(recording.rewards[1 : step + 1].sum())
    words = f"step {step}   value {recording.values[step]:.2f}   return {total:.3g}"
    pen.text((MARGIN, top), words, WORDS, font)
    at, top = WIDTH + 2 * MARGIN, MARGIN
    for title, strip in strips:
        pen.text((at, top), title, WORDS, font)
        frame.paste(Image.fromarray(strip), (at, top + TEXT + 4))
        x = at + round((step + 0.5) / len(recording.values) * WIDTH)
        pen.line((x, top + TEXT + 4, x, top + TEXT + 4 + len(strip)), CURSOR, 2)
        top += TEXT + MARGIN + len(strip)
    return frame.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)


def _sized(picture: Picture) -> Image.Image:
    image = Image.fromarray(picture)
    scale = min(HEIGHT / image.height, WIDTH / image.width)
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
