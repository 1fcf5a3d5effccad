"""Networks for images of many pixels or cells."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .kernels import Linear
from .normalization import Moments
from .specs import ArrayTorso, image_size, scaled, with_channels_last


class ImageTorso(ArrayTorso):
    """Convolutions over an image and one linear layer with a ReLU. Images are [rows, cols], [rows, cols, channels], or
    [frames, rows, cols, channels], whose frames become channels; with `first`, channels precede rows."""

    def __init__(self, name: str, shape: tuple[int, ...], scale: float, first: bool, moments: Moments | None) -> None:
        super().__init__(scale, moments)
        self.first = first
        channels, rows, cols = image_size(shape, first)
        convolutions, least, self.output_size = IMAGE_TORSOS[name]
        if min(rows, cols) < least:
            raise ValueError(
                f"torso is {name!r}; allowed for images of at least {least} x {least}, these have {rows} x {cols}; "
                "'atari-resnet' and 'grid' accept any"
            )
        self.layers, size = convolutions(channels, rows, cols)
        self.linear = Linear(size, self.output_size)

    def forward(self, observation: Tensor) -> Tensor:
        x = self.normalized(observation).permute(0, 3, 1, 2)
        return torch.relu(self.linear(self.layers(x).flatten(1)))

    def values(self, observation: Tensor) -> Tensor:
        """[N, *shape] -> [N, rows, cols, frames * channels], float32, scaled."""
        x = scaled(observation, self.scale)
        if x.ndim == 3:
            return x.unsqueeze(3)
        if x.ndim == 4:
            return with_channels_last(x, self.first)
        # [N, frames, rows, cols, channels] -> [N, rows, cols, frames * channels]
        return x.permute((0, 3, 4, 1, 2) if self.first else (0, 2, 3, 1, 4)).flatten(3)


def _nature(channels: int, rows: int, cols: int) -> tuple[nn.Module, int]:
    """Strided convolutions (Mnih et al. 2015, "Human-level control through deep reinforcement learning", Methods)."""
    layers: list[nn.Module] = []
    for kernels, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        layers += [nn.Conv2d(channels, kernels, size, stride), nn.ReLU()]
        channels, rows, cols = kernels, (rows - size) // stride + 1, (cols - size) // stride + 1
    return nn.Sequential(*layers), channels * rows * cols


class _Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), both 3x3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(torch.relu(x))))


def _resnet(channels: int, rows: int, cols: int) -> tuple[nn.Module, int]:
    """Three sections of a convolution, pooling and two residual blocks (Espeholt et al. 2018, "IMPALA", figure 3)."""
    layers: list[nn.Module] = []
    for kernels in (16, 32, 32):
        # Pooling halves the size, rounding up: a padding of 1 is SAME for a window of 3.
        layers += [nn.Conv2d(channels, kernels, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
        layers += [_Residual(kernels), _Residual(kernels)]
        channels, rows, cols = kernels, -(-rows // 2), -(-cols // 2)
    return nn.Sequential(*layers, nn.ReLU()), channels * rows * cols


class _Scales(nn.Module):
    """The center of an image cell by cell, and the whole image in blocks of 3 x 3 cells: two 3x3 convolutions of 16
    kernels over the central 11 x 11 cells and one over the means of the blocks."""

    CROP, BLOCK, KERNELS = 11, 3, 16

    def __init__(self, channels: int, rows: int, cols: int) -> None:
        super().__init__()
        self.near_rows, self.near_cols = (slice((n - self.CROP) // 2, (n + self.CROP) // 2) for n in (rows, cols))
        (left, right), (above, below) = ((-n % self.BLOCK // 2, (-n % self.BLOCK + 1) // 2) for n in (cols, rows))
        self.padding = left, right, above, below
        first, second = (nn.Conv2d(c, self.KERNELS, 3, padding=1) for c in (channels, self.KERNELS))
        self.near = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
        self.far = nn.Sequential(nn.Conv2d(channels, self.KERNELS, 3, padding=1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, rows, cols] -> [N, size]."""
        far = functional.avg_pool2d(functional.pad(x, self.padding), self.BLOCK)
        near = x[:, :, self.near_rows, self.near_cols].contiguous()
        return torch.cat([self.near(near).flatten(1), self.far(far).flatten(1)], 1)


def _foveal(channels: int, rows: int, cols: int) -> tuple[nn.Module, int]:
    blocks = -(-rows // _Scales.BLOCK) * -(-cols // _Scales.BLOCK)
    return _Scales(channels, rows, cols), _Scales.KERNELS * (_Scales.CROP**2 + blocks)


IMAGE_TORSOS = {
    "atari": (_nature, 36, 512),
    "atari-resnet": (_resnet, 1, 256),
    "foveal": (_foveal, _Scales.CROP, 256),
}
"""By their name in --torso: the convolutions and their number of outputs, the fewest rows or columns, and units."""
