"""The default torso, `grid`: convolutions over an image of cells, and its parts, which other torsos share."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import TorsoConfig
from .images import Symbols, channels_first, image_size
from .normalization import Moments
from .specs import ArraySpec, scaled, with_channels_last

MOST_CELLS = 20  # An image of bytes with more rows or columns contains pixels, not symbols


class ArrayTorso(nn.Module):
    """Base of torsos of one array: scaling, and normalization of its last axis if `moments` is not None."""

    output_size: int

    def __init__(self, scale: float, moments: Moments | None) -> None:
        super().__init__()
        self.scale, self.moments = scale, moments

    def values(self, observation: Tensor) -> Tensor:
        """[N, *shape] -> [N, ..., features], float32, scaled."""
        return scaled(observation, self.scale).flatten(1)

    def normalized(self, observation: Tensor) -> Tensor:
        x = self.values(observation)
        return x if self.moments is None else self.moments(x)

    def observe(self, observation: Tensor) -> None:
        """Add observations [N, *shape] to the running moments."""
        if self.moments is not None:
            self.moments.update(self.values(observation).flatten(0, -2), float(len(observation)))


def moments_of(size: int, config: TorsoConfig) -> Moments | None:
    """Create running moments of `size` features over about the last 10 million observations, if configured."""
    return Moments(size, memory=1e7) if config.normalize_observations else None


class ConvTorso(ArrayTorso):
    """Convolutions, each with SAME padding and ReLU, then position planes (RMC paper, A.3), flattened row-major.
    Reads [N, rows, cols, features], as environments return them, or [N, features, rows, cols]."""

    def __init__(self, spec: ArraySpec, config: TorsoConfig) -> None:
        first = channels_first(spec.shape, config.image_layout)
        features, rows, cols = image_size(spec.shape, first)
        super().__init__(spec.scale, moments_of(features, config))
        self.first = first
        symbols = config.symbol_size and spec.scale != 1.0 and max(rows, cols) <= MOST_CELLS
        self.symbols = Symbols(features, config.symbol_size, config.balance_symbols) if symbols else None
        channels = (features + (config.symbol_size if symbols else 0), *config.conv_channels)
        strides, kernel = config.conv_strides or (1,) * len(config.conv_channels), config.conv_kernel
        self.convs = nn.ModuleList()
        self.paddings: list[tuple[int, int, int, int] | None] = []  # Before each convolution, if it does not pad
        for (a, b), stride in zip(pairwise(channels), strides, strict=True):
            left, right, above, below = padding = *_same(cols, kernel, stride), *_same(rows, kernel, stride)
            equal = left == right and above == below
            self.convs.append(nn.Conv2d(a, b, kernel, stride, (above, left) if equal else 0))
            self.paddings.append(None if equal else padding)
            rows, cols = -(-rows // stride), -(-cols // stride)
        with torch.device("cpu"):  # even for the meta device, for which torch would import its compiler
            positions = torch.meshgrid(torch.linspace(-1, 1, rows), torch.linspace(-1, 1, cols), indexing="ij")
            planes = torch.stack(positions)
        self.planes = nn.Buffer(planes if config.position_planes else planes[:0], persistent=False)
        self.image = (channels[-1] + len(self.planes), rows, cols)  # Channels, rows and columns of the output
        self.output_size = math.prod(self.image)

    def forward(self, observation: Tensor) -> Tensor:
        x = self.normalized(observation)
        if self.symbols is not None:
            x = torch.cat([x, self.symbols(with_channels_last(observation, self.first))], 3)
        x = x.permute(0, 3, 1, 2)
        for conv, padding in zip(self.convs, self.paddings, strict=True):
            x = torch.relu(conv(functional.pad(x, padding) if padding else x))
        return torch.cat([x, self.planes.expand(x.shape[0], *self.planes.shape)], 1).flatten(1)

    def values(self, observation: Tensor) -> Tensor:
        """[N, *shape] -> [N, rows, cols, features], float32, scaled."""
        return with_channels_last(scaled(observation, self.scale), self.first)

    def observe(self, observation: Tensor) -> None:
        super().observe(observation)
        if self.symbols is not None:
            self.symbols.observe(with_channels_last(observation, self.first))


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and after an axis for an output of size ceil(size / stride) (TensorFlow's SAME)."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2
