"""Size of the image at the beginning of a core's inputs."""

import math


def image_size(
    core: str, input_size: int, height: int | None, width: int | None, channels: int | None
) -> tuple[int, int, int]:
    """Return (channels, height, width) of the image with which a core's `input_size` features begin. `channels` may be
    omitted; without any size, the image is the largest square whose area divides input_size. Raises ValueError, naming
    `core`, if there is no such image or it does not fit."""
    if height is None and width is None and channels is None:
        side = max(s for s in range(1, math.isqrt(input_size) + 1) if input_size % s**2 == 0)
        if side == 1:
            raise ValueError(f"no square image divides input_size {input_size}; give core {core!r} height and width")
        return input_size // side**2, side, side
    if height is None or width is None:
        raise ValueError(f"core {core!r} needs height and width together; got height={height}, width={width}")
    planes = input_size // (height * width) if channels is None else channels
    if not 0 < planes * height * width <= input_size:
        raise ValueError(
            f"an image of {channels or 'at least one'} x {height} x {width} does not fit in input_size {input_size}"
        )
    return planes, height, width
