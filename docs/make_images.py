"""Plot the images of docs/reference/environments.md: each environment's whole board alongside the observation.

python docs/make_images.py [ENVIRONMENT ...]
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from engram.envs.registration import make_batch

IMAGES = Path(__file__).parent / "images"
HEIGHT, GAP = 330, 12


class Moment(NamedTuple):
    """A moment worth showing: `steps` random actions after the start, or one action repeated."""

    seed: int
    steps: int
    action: int | None = None


MOMENTS = {
    "boxworld": Moment(seed=8, steps=15),
    "mini-pacman": Moment(seed=4, steps=40),
    "pomdp-graph": Moment(seed=5, steps=7),
    "cued-catch": Moment(seed=1, steps=25),
    "t-maze": Moment(seed=1, steps=20),
    "sequence-recall": Moment(seed=1, steps=40),
    "maze": Moment(seed=6, steps=30),
    "popgym-concentration": Moment(seed=1, steps=40),
}
"""Environments without a moment have no image."""


def draw(name: str) -> Image.Image:
    """Both views of an environment, side by side."""
    seed, steps, action = MOMENTS[name]
    batch, random = make_batch(name, 1), np.random.default_rng(seed)
    batch.reset(seed=seed)
    for _ in range(steps):
        choice = int(random.integers(batch.single_action_space.n)) if action is None else action
        batch.step(np.array([choice]))
    views = [batch.draw(0, full) for full in (True, False)]
    same = views[0].shape == views[1].shape and (views[0] == views[1]).all()
    images = [scaled(Image.fromarray(view)) for view in (views[:1] if same else views)]
    width = sum(image.width for image in images) + GAP * (len(images) - 1)
    together = Image.new("RGB", (width, HEIGHT), "white")
    left = 0
    for image in images:
        together.paste(image, (left, 0))
        left += image.width + GAP
    return together


def scaled(image: Image.Image) -> Image.Image:
    """The image at the common height."""
    return image.resize((round(image.width * HEIGHT / image.height), HEIGHT), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for environment in sys.argv[1:] or MOMENTS:
        file = IMAGES / f"{environment}.png"
        draw(environment).quantize(255, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(file, optimize=True)
        print(f"{file} {file.stat().st_size // 1024} KiB")
