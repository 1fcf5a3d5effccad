"""The arrays of an observation over an episode: images, vectors for heat maps, and scalars."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...agents.specs import channels_first, image_size

Image = NDArray[np.uint8]
SINGLE = "observation"  # Name of an observation that is not a dict
COLOR, MOST_CHANNELS = 3, 16
"""Three channels are red, green and blue; other channels are gray images next to each other, up to a limit."""
SHORTEST_SIDE = 160  # Pixels to which the shorter side of an image is enlarged
DIMMEST = 128  # Bytes that stay below this, such as indices of objects, are scaled to the whole range of gray


def named_arrays(observation: Any, name: str = "") -> dict[str, NDArray[Any]]:
    """The arrays of environment 0 in step 0 of an unroll, by name; dots join keys of nested dicts."""
    if isinstance(observation, Tensor):
        return {name or SINGLE: observation[0, 0].numpy()}
    arrays: dict[str, NDArray[Any]] = {}
    for key, part in observation.items():
        arrays |= named_arrays(part, f"{name}.{key}" if name else str(key))
    return arrays


def is_image(array: NDArray[Any]) -> bool:
    """Whether an array [T, ...] is an image per step: bytes of one plane, or a few channels, or frames."""
    shape = array.shape[1:]
    if len(shape) == 2:
        return array.dtype == np.uint8 and min(shape) > 1
    if len(shape) not in (3, 4):
        return False
    channels, rows, columns = image_size(shape[-3:], _first(shape))
    return 0 < channels <= MOST_CHANNELS and min(rows, columns) > 1


def images(array: NDArray[Any]) -> list[Image]:
    """uint8 [height, width, 3] for each step of an image leaf [T, ...]; frames and gray channels are placed side by
    side."""
    values = array if array.ndim > 3 else array[..., None]
    if _first(values.shape[1:]):
        values = np.moveaxis(values, -3, -1)
    if values.ndim == 5:
        values = np.concatenate(list(np.moveaxis(values, 1, 0)), axis=2)
    if values.shape[-1] != COLOR:
        values = np.concatenate(list(np.moveaxis(values, -1, 0)), axis=2)[..., None].repeat(COLOR, axis=-1)
    times = -(-SHORTEST_SIDE // min(values.shape[1:3]))
    return [each.repeat(times, axis=0).repeat(times, axis=1) for each in _bytes(values)]


def _first(shape: tuple[int, ...]) -> bool:
    """Whether channels come before rows; if the shape is ambiguous, they are last."""
    try:
        return channels_first((shape[-3], shape[-2], shape[-1]), "auto")
    except ValueError:
        return False


def _bytes(values: NDArray[Any]) -> Image:
    if values.dtype == np.uint8 and values.max(initial=0) >= DIMMEST:
        return values
    finite = np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = min(0.0, float(finite.min(initial=0))), float(finite.max(initial=0))
    return ((finite - low) * (255 / max(high - low, 1e-9))).round().astype(np.uint8)
