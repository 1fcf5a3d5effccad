"""Torsos: encoders from an observation to one vector per environment.

A torso maps [N, *shape] to [N, output_size]. It has no memory, so it encodes all T * B observations at once.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import TorsoConfig
from .custom.torso import TORSOS, custom_torso
from .grid_torso import ArrayTorso, ConvTorso, moments_of
from .images import channels_first, image_size
from .kernels import Linear
from .normalization import Moments
from .specs import ArraySpec, ObservationSpec, scaled, with_channels_last
from .unique_observations import once_each
from .values import ObservationTensor

IMAGE_AXES = (2, 3, 4)  # Axes of [rows, columns], [rows, columns, channels] and [frames, rows, columns, channels]


class FlatTorso(ArrayTorso):
    """Scaled vector (or any array, flattened)."""

    def __init__(self, spec: ArraySpec, config: TorsoConfig) -> None:
        size = math.prod(spec.shape)
        super().__init__(spec.scale, moments_of(size, config))
        self.output_size = size

    def forward(self, observation: Tensor) -> Tensor:
        return self.normalized(observation)


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


IMAGE_TORSOS = {"atari": (_nature, 36, 512), "atari-resnet": (_resnet, 1, 256), "foveal": (_foveal, _Scales.CROP, 256)}
"""By their name in --torso: the convolutions and their number of outputs, the fewest rows or columns, and units."""


class DictTorso(nn.Module):
    """One torso per entry of a dict, in the order of sorted keys; features are concatenated."""

    def __init__(self, specs: dict[str, ObservationSpec], config: TorsoConfig) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({key: _torso(specs[key], config) for key in sorted(specs)})
        self.output_size = sum(int(part.output_size) for part in self.parts.values())  # pyright: ignore

    def forward(self, observation: ObservationTensor) -> Tensor:
        return torch.cat([part(observation[key]) for key, part in self.parts.items()], 1)

    def observe(self, observation: ObservationTensor) -> None:
        for key, part in self.parts.items():
            part.observe(observation[key])  # pyright: ignore


class EmbeddingTorso(nn.Module):
    """A torso followed by one linear layer and a ReLU."""

    def __init__(self, torso: nn.Module, config: TorsoConfig) -> None:
        super().__init__()
        self.torso = torso
        self.linear = Linear(int(torso.output_size), config.embedding_size)  # pyright: ignore
        with torch.no_grad():
            self.linear.weight.mul_(config.embedding_scale)
            self.linear.bias.add_(config.embedding_bias)
        self.output_size = config.embedding_size

    def forward(self, observation: ObservationTensor) -> Tensor:
        return torch.relu(self.linear(self.torso(observation)))

    def observe(self, observation: ObservationTensor) -> None:
        self.torso.observe(observation)  # pyright: ignore


class NormalizedTorso(nn.Module):
    """A torso with features normalized by running moments over about the last 2 million observations."""

    def __init__(self, torso: nn.Module) -> None:
        super().__init__()
        self.torso = torso
        self.output_size = int(torso.output_size)  # pyright: ignore
        self.image = getattr(torso, "image", None)
        self.moments = Moments(self.output_size, memory=2e6, floor=0.05)

    def forward(self, observation: ObservationTensor) -> Tensor:
        return self.moments(self.torso(observation))

    @torch.no_grad()
    def observe(self, observation: ObservationTensor) -> None:
        """Add observations to the running moments, including those of the features, computed with the new weights."""
        self.torso.observe(observation)  # pyright: ignore
        features = once_each(self.torso, observation)
        self.moments.update(features, float(len(features)))


def make_torso(spec: ObservationSpec, config: TorsoConfig) -> nn.Module:
    """Create the torso of an observation. Raises ValueError if a custom torso is invalid, or if a torso other than grid
    is configured and no entry of the observation is an image."""
    if config.torso not in TORSOS:
        torso: nn.Module = custom_torso(config.torso, spec, config.torso_args)
    elif config.torso == "grid" or _has_image(spec):
        torso = _torso(spec, config)
    else:
        shapes = f"shape {list(spec.shape)}" if isinstance(spec, ArraySpec) else f"entries {', '.join(sorted(spec))}"
        raise ValueError(
            f"torso is {config.torso!r}, and the observation of {shapes} is not an image; allowed: torso 'grid', or an "
            "observation [rows, columns], [rows, columns, channels] or [frames, rows, columns, channels]"
        )
    torso = EmbeddingTorso(torso, config) if config.embedding_size else torso
    return NormalizedTorso(torso) if config.normalize_features else torso


def _torso(spec: ObservationSpec, config: TorsoConfig) -> nn.Module:
    if isinstance(spec, dict):
        return DictTorso(spec, config)
    if config.torso != "grid" and len(spec.shape) in IMAGE_AXES:
        first = len(spec.shape) > 2 and channels_first(spec.shape[-3:], config.image_layout)
        moments = moments_of(image_size(spec.shape, first)[0], config)
        return ImageTorso(config.torso, spec.shape, spec.scale, first, moments)
    return ConvTorso(spec, config) if len(spec.shape) == 3 and config.conv_channels else FlatTorso(spec, config)


def _has_image(spec: ObservationSpec) -> bool:
    if isinstance(spec, dict):
        return any(_has_image(part) for part in spec.values())
    return len(spec.shape) in IMAGE_AXES
