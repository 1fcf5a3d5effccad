"""A recording as a moving picture: board, view, and the first panels of the memory with the present step marked."""

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from ...agents.inside import Panel
from . import drawing
from .recording import Picture, Recording

HEIGHT, MARGIN, TEXT, WIDTH = 230, 12, 15, 400
"""Pixels: the pictures, the space around them, the letters, the panels."""
SMALL, GUTTER = 11, 58
"""Pixels: the letters beside the policy, and the room for them."""
CURVES, POLICY, MEMORY = 70, 90, 110
"""Pixels: heights of the panels."""
MOST_PANELS = 2
"""Of the memory."""
BACKGROUND, WORDS, CURSOR = "#18181b", "#ebebeb", "#fb923c"
PAPER, AXIS = "#232329", "#3f3f46"
MILLISECONDS, LAST_MILLISECONDS = 120, 1500
MOST_FRAMES = 300
"""Of a longer episode every second step is shown, or every third."""
COLOURS = 96


def film(recording: Recording, shown: Sequence[Panel]) -> bytes:
    """An animated GIF. Raises ValueError in a world without pictures."""
    if not recording.boards:
        raise ValueError("this world draws no pictures")
    steps = range(0, len(recording.values), -(-len(recording.values) // MOST_FRAMES))
    policy, outcome, *memory = shown
    # Heat maps first: they say which part of the memory it was.
    chosen = sorted((p for p in memory if p.kind != "matrix"), key=lambda p: p.kind != "heat")[:MOST_PANELS]
    strips = [Strip(policy, POLICY), Strip(outcome, CURVES)]
    strips += [Strip(panel, MEMORY if panel.kind == "heat" else CURVES) for panel in chosen]
    frames = [_frame(recording, strips, step) for step in steps]
    durations = [MILLISECONDS] * (len(frames) - 1) + [LAST_MILLISECONDS]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return file.getvalue()


class Strip:
    """A panel as it is in every frame.

    Args:
        panel: of curves or colours.
        height: pixels.
    """

    def __init__(self, panel: Panel, height: int) -> None:
        self.title, self.labels, self.height = panel.title, panel.labels, height
        lines = panel.kind == "lines"
        self.colours = drawing.LINES if lines else ()
        drawn = drawing.curves(panel, WIDTH, height, PAPER, AXIS) if lines else drawing.heat_map(panel, WIDTH, height)
        self.picture = Image.fromarray(drawn)

    def draw(self, frame: Image.Image, left: int, top: int) -> None:
        """Title, names and picture, the title at `top`."""
        pen = ImageDraw.Draw(frame)
        pen.text((left, top), self.title, WORDS, ImageFont.load_default(TEXT))
        frame.paste(self.picture, (left, top + TEXT + 4))
        small = ImageFont.load_default(SMALL)
        if self.colours:
            right = left + WIDTH
            for k, name in reversed(list(enumerate(self.labels[: len(self.colours)]))):
                right -= int(pen.textlength(name, small)) + MARGIN
                if right > left + pen.textlength(self.title, ImageFont.load_default(TEXT)) + MARGIN:
                    pen.text((right, top + 3), name, self.colours[k], small)
        elif self.height >= SMALL * len(self.labels):
            for k, name in enumerate(self.labels):
                middle = top + TEXT + 4 + (k + 0.5) / len(self.labels) * self.height
                while pen.textlength(name, small) > GUTTER - 6:
                    name = name[:-1]
                pen.text((left - 6, middle), name, WORDS, small, anchor="rm")


def _frame(recording: Recording, strips: Sequence[Strip], step: int) -> Image.Image:
    boards = [_sized(pictures[step]) for pictures in (recording.boards, recording.views) if pictures]
    tall = sum(board.height + MARGIN for board in boards) + TEXT + MARGIN
    height = max(tall, sum(strip.height + TEXT + 4 + MARGIN for strip in strips)) + MARGIN
    frame = Image.new("RGB", (2 * WIDTH + 3 * MARGIN + GUTTER, height), BACKGROUND)
    pen, font, top = ImageDraw.Draw(frame), ImageFont.load_default(TEXT), MARGIN
    for board in boards:
        frame.paste(board, (MARGIN + (WIDTH - board.width) // 2, top))
        top += board.height + MARGIN
    total = float(recording.rewards[1 : step + 1].sum())
    words = f"step {step}   value {recording.values[step]:.2f}   return {total:.3g}"
    pen.text((MARGIN, top), words, WORDS, font)
    at, top = WIDTH + 2 * MARGIN + GUTTER, MARGIN
    for strip in strips:
        strip.draw(frame, at, top)
        top += TEXT + 4
        x = at + round((step + 0.5) / len(recording.values) * WIDTH)
        pen.line((x, top, x, top + strip.height), CURSOR, 2)
        top += strip.height + MARGIN
    return frame.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)


def _sized(picture: Picture) -> Image.Image:
    image = Image.fromarray(picture)
    scale = min(HEIGHT / image.height, WIDTH / image.width)
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
