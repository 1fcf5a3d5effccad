"""Images: their layout, and learned features of their bytes."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .normalization import Shares

MIN_IMAGE_SIDE = 16  # From this many rows and columns, an array whose first axis is the shortest is channels-first


def channels_first(shape: tuple[int, ...], layout: str) -> bool:
    """Whether an image of this shape is [channels, rows, columns], not [rows, columns, channels]. Two equal axes are
    rows and columns; otherwise the channels are the shortest axis. Raises ValueError if the shape is ambiguous, since a
    grid of few rows with many features can have the same shape as an image with few channels."""
    if layout != "auto":
        return layout == "channels-first"
    first, second, third = shape
    if first == second or (second != third and third < min(first, second)):
        return False
    if first < min(second, third) and (second == third or min(second, third) >= MIN_IMAGE_SIDE):
        return True
    raise ValueError(
        f"an observation of shape {list(shape)} may be [rows, columns, channels] or [channels, rows, columns]: "
        "set --image-layout (channels-last, channels-first)"
    )


def image_size(shape: tuple[int, ...], first: bool) -> tuple[int, int, int]:
    """Return (channels, rows, columns) of an image [rows, columns], [rows, columns, channels] or [frames, rows,
    columns, channels]. Stacked frames become channels. With `first`, channels precede rows."""
    if len(shape) == 2:
        return 1, *shape
    channels, rows, cols = shape[-3:] if first else (shape[-1], *shape[-3:-1])
    return math.prod(shape[:-3]) * channels, rows, cols


class Symbols(nn.Module):
    """Learned features of bytes: one table of F = `size` features per channel, summed over a cell's C `channels`. With
    `balanced`, every symbol contributes equally to the variance (`Shares.factors`), a key as much as the walls."""

    def __init__(self, channels: int, size: int, balanced: bool = False) -> None:
        super().__init__()
        self.channels = channels
        self.tables = nn.Parameter(torch.randn(channels * 256, size) * channels**-0.5)
        self.first = nn.Buffer(torch.arange(channels) * 256, persistent=False)
        self.shares = Shares(channels * 256, memory=1e7, floor=0.01) if balanced else None

    def forward(self, cells: Tensor) -> Tensor:
        """Bytes [N, rows, cols, C] -> [N, rows, cols, F]."""
        tables = self.tables if self.shares is None else self.tables * self.shares.factors(self.channels).unsqueeze(1)
        return functional.embedding(self._rows(cells), tables).sum(3)

    def observe(self, cells: Tensor) -> None:
        if self.shares is not None:
            self.shares.update(self._rows(cells).flatten(), cells[..., 0].numel(), float(len(cells)))

    def _rows(self, cells: Tensor) -> Tensor:
        return cells.long() + self.first
