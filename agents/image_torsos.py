"""Networks for images of many pixels or cells."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .kernels import Linear
from .normalization import Moments
from .specs import image_size, scaled, with_channels_last


class ImageTorso(nn.Module):
    """Convolutions over an image and one linear layer with a ReLU; subclasses define the convolutions.

    Args:
        shape: [rows, cols], [rows, cols, channels], or [frames, rows, cols, channels], whose frames become channels;
            with `first`, channels precede rows.
        scale: the network receives observation * scale.
        first: whether the channels are the first axis.
        moments: running moments of the channels, or None.
    """

    width: int  # Units of the linear layer

    def __init__(self, shape: tuple[int, ...], scale: float, first: bool, moments: Moments | None) -> None:
        super().__init__()
        self.scale, self.first, self.moments = scale, first, moments
        channels, rows, cols = image_size(shape, first)
        self.layers, size = self._layers(channels, rows, cols)
        self.linear = Linear(size, self.width)
        self.output_size = self.width

    def _layers(self, channels: int, rows: int, cols: int) -> tuple[nn.Module, int]:
        """Build the convolutions; return them and their number of outputs."""
        raise NotImplementedError

    def forward(self, observation: Tensor) -> Tensor:
        """[N, *shape] -> [N, width]."""
        x = self._pixels(observation)
        x = (x if self.moments is None else self.moments(x)).permute(0, 3, 1, 2)
        return torch.relu(self.linear(self.layers(x).flatten(1)))

    def observe(self, observation: Tensor) -> None:
        if self.moments is not None:
            self.moments.update(self._pixels(observation).flatten(0, 2), float(len(observation)))

    def _pixels(self, observation: Tensor) -> Tensor:
        """[N, *shape] -> [N, rows, cols, frames * channels], float32, scaled."""
        x = scaled(observation, self.scale)
        if x.ndim == 3:
            return x.unsqueeze(3)
        if x.ndim == 4:
            return with_channels_last(x, self.first)
        # [N, frames, rows, cols, channels] -> [N, rows, cols, frames, channels] -> [N, rows, cols, frames * channels]
        return x.permute((0, 3, 4, 1, 2) if self.first else (0, 2, 3, 1, 4)).flatten(3)


class NatureTorso(ImageTorso):
    """Three strided convolutions: 32 kernels 8x8 stride 4, 64 4x4 stride 2, 64 3x3 stride 1; then 512 units.

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning", Methods, model architecture.
    """

    width = 512
    LEAST = 36  # Smallest number of rows and of columns that all three convolutions accept

    def _layers(self, channels: int, rows: int, cols: int) -> tuple[nn.Sequential, int]:
        if min(rows, cols) < self.LEAST:
            raise ValueError(
                f"torso is 'atari'; allowed for images of at least {self.LEAST} x {self.LEAST}, these have "
                f"{rows} x {cols}; 'atari-resnet' and 'grid' accept any"
            )
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
        """[N, channels, rows, cols], in and out."""
        return x + self.second(torch.relu(self.first(torch.relu(x))))


class ResNetTorso(ImageTorso):
    """Sections of 16, 32 and 32 channels, each a 3x3 convolution, pooling and two residual blocks; then 256 units.

    Source: Espeholt et al. 2018, "IMPALA", figure 3 (right), without its LSTM, which is a core here.
    """

    width = 256

    def _layers(self, channels: int, rows: int, cols: int) -> tuple[nn.Sequential, int]:
        layers: list[nn.Module] = []
        for kernels in (16, 32, 32):
            # Pooling halves the size, rounding up: a padding of 1 is SAME for a window of 3.
            layers += [nn.Conv2d(channels, kernels, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            layers += [_Residual(kernels), _Residual(kernels)]
            channels, rows, cols = kernels, -(-rows // 2), -(-cols // 2)
        return nn.Sequential(*layers, nn.ReLU()), channels * rows * cols


class _Scales(nn.Module):
    """The center of an image cell by cell, and the whole image in blocks of 3 x 3 cells."""

    CROP, BLOCK, KERNELS = 11, 3, 16

    def __init__(self, channels: int, rows: int, cols: int) -> None:
        super().__init__()
        self.near_rows, self.near_cols = (slice((n - self.CROP) // 2, (n + self.CROP) // 2) for n in (rows, cols))
        (left, right), (above, below) = ((-n % self.BLOCK // 2, (-n % self.BLOCK + 1) // 2) for n in (cols, rows))
        self.padding = left, right, above, below
        self.near = nn.Sequential(
            nn.Conv2d(channels, self.KERNELS, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(self.KERNELS, self.KERNELS, 3, padding=1),
            nn.ReLU(),
        )
        self.far = nn.Sequential(nn.Conv2d(channels, self.KERNELS, 3, padding=1), nn.ReLU())
        self.size = self.KERNELS * (self.CROP**2 + -(-rows // self.BLOCK) * -(-cols // self.BLOCK))

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, rows, cols] -> [N, size]."""
        far = functional.avg_pool2d(functional.pad(x, self.padding), self.BLOCK)
        near = x[:, :, self.near_rows, self.near_cols].contiguous()
        return torch.cat([self.near(near).flatten(1), self.far(far).flatten(1)], 1)


class FovealTorso(ImageTorso):
    """For images centered on the agent: 3x3 convolutions of 16 kernels, two over the central 11 x 11 cells and one over
    the means of 3 x 3 blocks of cells of the whole image; then 256 units.
    """

    width = 256

    def _layers(self, channels: int, rows: int, cols: int) -> tuple[nn.Module, int]:
        if min(rows, cols) < _Scales.CROP:
            raise ValueError(
                f"torso is 'foveal'; allowed for images of at least {_Scales.CROP} x {_Scales.CROP}, these have "
                f"{rows} x {cols}; 'grid' accepts any"
            )
        scales = _Scales(channels, rows, cols)
        return scales, scales.size


IMAGE_TORSOS: dict[str, type[ImageTorso]] = {
    "atari": NatureTorso,
    "atari-resnet": ResNetTorso,
    "foveal": FovealTorso,
}
"""Networks by their name in --torso."""
