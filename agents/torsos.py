"""Torsos: encoders from an observation to one vector per environment.

A torso maps [N, *shape] to [N, output_size]. It has no memory, so it encodes all T * B observations at once.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..base.errors import above
from ..base.settings import Settings, setting
from .custom.torso import TORSOS, check_torso_name, custom_torso
from .image_torsos import ImageTorso
from .kernels import Linear
from .normalization import Moments, Shares
from .specs import ArraySpec, ArrayTorso, ObservationSpec, channels_first, image_size, scaled, with_channels_last
from .unique_observations import once_each
from .values import ObservationTensor

MOST_CELLS = 20  # An image of bytes with more rows or columns contains pixels, not symbols
IMAGE_AXES = (2, 3, 4)  # Axes of [rows, columns], [rows, columns, channels] and [frames, rows, columns, channels]


@dataclass(frozen=True, kw_only=True)
class TorsoConfig(Settings):
    """Configuration of the torso."""

    torso: str = "grid"
    """Network for images: grid (2x2 convolutions) for images of cells; atari (strided convolutions of Mnih et al. 2015,
    512 units) or atari-resnet (residual blocks of Espeholt et al. 2018, 256 units) for images of pixels, including
    images without channels and stacked frames; foveal (the center in full, the whole image coarsely, 256 units) for
    images centered on the agent; or module:Class, a custom network for the complete observation."""
    torso_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Options of a custom torso; omitted options keep their defaults."""
    image_layout: Literal["auto", "channels-last", "channels-first"] = "auto"
    """Channel axis of an image; auto infers it from the shape, or raises an error if the shape is ambiguous."""
    conv_channels: tuple[int, ...] = (12, 24)
    """Output channels of each convolution of torso grid (RMC paper A.3: 12 and 24); none: the image is flattened."""
    conv_kernel: int = setting(2, (1, None))
    """Rows and columns of the kernels of torso grid."""
    conv_strides: tuple[int, ...] = ()
    """Stride of each convolution of torso grid; none: 1 for all. Strides 1 2, kernel 3 and channels 16 16 are
    the encoder of public reimplementations of imagination-augmented agents (Weber et al. 2017) for whole mazes."""
    position_planes: bool = True
    """Whether torso grid appends two planes with each cell's row and column in -1..1 (RMC paper A.3)."""
    embedding_size: int = setting(0, (0, None))
    """Width of a ReLU layer after the torso; 0 omits it."""
    embedding_scale: float = setting(1.0, above(0))
    """Factor on the initial weights of the embedding layer."""
    embedding_bias: float = 0.0
    """Added to the embedding layer's initial biases. With large weights and negative biases, each unit responds to few
    observations, so a memory that sums its inputs can distinguish brief observations from frequent ones."""
    symbol_size: int = setting(0, (0, None))
    """Torso grid, images of bytes of at most 20 x 20 cells: each byte is also a symbol with this many learned
    features, summed over a cell's channels (Hui et al. 2020, "BabyAI 1.1"); 0: bytes are quantities only."""
    balance_symbols: bool = False
    """With a symbol size: symbols are scaled by 1 / sqrt(share), share being the running share of cells that show the
    symbol, at least 1%, so that rare symbols that matter stand out from walls and floors."""
    normalize_observations: bool = False
    """Whether values and image channels are normalized by their running mean and standard deviation. A custom torso
    receives raw observations and may normalize them itself (agents/normalization.py)."""
    normalize_features: bool = False
    """Whether the torso's features are normalized by their running mean and standard deviation: a memory that sums its
    inputs then stores differences, not constant parts."""
    fixed_features: bool = False
    """Whether the torso keeps its initial weights. Stored features then never change, so a readout learned without
    backpropagation through time, such as that of Concrete's pools, need not be relearned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_torso_name(self.torso)
        if self.torso in TORSOS and self.torso_args:
            raise ValueError(f"torso_args is {self.torso_args}; allowed: with a custom torso, not {self.torso!r}")
        for name in ("conv_channels", "conv_strides"):
            if min(values := getattr(self, name), default=1) < 1:
                raise ValueError(f"{name} is {values}; allowed: values of at least 1")
        wanted, strides = len(self.conv_channels), len(self.conv_strides)
        if strides not in (0, wanted):
            raise ValueError(f"conv_strides has {strides} values; allowed: {wanted}, one for each of conv_channels")


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
        shares, tables = self.shares, self.tables
        tables = tables if shares is None else tables * shares.factors(self.channels).unsqueeze(1)
        return functional.embedding(self._rows(cells), tables).sum(3)

    def observe(self, cells: Tensor) -> None:
        if self.shares is not None:
            self.shares.update(self._rows(cells).flatten(), cells[..., 0].numel(), float(len(cells)))

    def _rows(self, cells: Tensor) -> Tensor:
        return cells.long() + self.first


class ConvTorso(ArrayTorso):
    """Convolutions, each with SAME padding and ReLU, then position planes (RMC paper, A.3), flattened row-major.
    Reads [N, rows, cols, features], as environments return them, or [N, features, rows, cols]."""

    def __init__(self, spec: ArraySpec, config: TorsoConfig) -> None:
        first = channels_first(spec.shape, config.image_layout)
        features, rows, cols = image_size(spec.shape, first)
        super().__init__(spec.scale, _moments(features, config))
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


class FlatTorso(ArrayTorso):
    """Scaled vector (or any array, flattened)."""

    def __init__(self, spec: ArraySpec, config: TorsoConfig) -> None:
        size = math.prod(spec.shape)
        super().__init__(spec.scale, _moments(size, config))
        self.output_size = size

    def forward(self, observation: Tensor) -> Tensor:
        return self.normalized(observation)


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
        moments = _moments(image_size(spec.shape, first)[0], config)
        return ImageTorso(config.torso, spec.shape, spec.scale, first, moments)
    return ConvTorso(spec, config) if len(spec.shape) == 3 and config.conv_channels else FlatTorso(spec, config)


def _has_image(spec: ObservationSpec) -> bool:
    if isinstance(spec, dict):
        return any(_has_image(part) for part in spec.values())
    return len(spec.shape) in IMAGE_AXES


def _moments(size: int, config: TorsoConfig) -> Moments | None:
    """Create running moments of `size` features over about the last 10 million observations, if configured."""
    return Moments(size, memory=1e7) if config.normalize_observations else None
