"""Configuration of the network: torso, core and heads."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..base.errors import above
from ..base.settings import Settings, setting
from .custom.torso import TORSOS, check_torso_name


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


@dataclass(frozen=True, kw_only=True)
class AgentConfig(Settings):
    """Configuration of the network: parts and sizes."""

    core: str = "rmc"
    """Memory core: a registered name or module:Class."""
    core_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Options of the core; omitted options keep the core's defaults."""
    torso: TorsoConfig = TorsoConfig()
    """Encoder of observations."""
    previous_action: bool = False
    """Whether the core receives the previous action, one-hot or as values (zeros at the start of an episode)."""
    previous_reward: bool = False
    """Whether the core receives the previous reward."""
    previous_reward_clip: float = setting(0.0, (0, None))
    """The previous reward is clipped to plus or minus this value; 0: no clipping, but normalization by its running mean
    and standard deviation, then symlog, so that the core distinguishes rewards of any size."""
    time_horizon: int = setting(0, (0, 2**63 - 1))
    """The core also receives the elapsed steps of the episode divided by this; 0 omits them."""
    policy_scale: float = setting(1.0, (0, None))
    """Factor on the policy head's initial weights. Above 1, an untrained agent prefers some actions everywhere and
    reaches distant states; at 1, it stays near its start."""
    normalize_returns: bool = False
    """The value head predicts returns normalized by running statistics (PopArt), so that value loss and advantages are
    of order 1 for rewards of any size."""
    prediction_size: int = setting(0, (0, None))
    """Units of the hidden layer that predicts the next step from the core's output and the action. The error times
    `prediction_cost` is a loss that trains the memory; acting does not use the prediction. 0 disables it."""
    predict: Literal["observation", "reward", "map"] = "observation"
    """Target of the prediction: the next observation (the memory learns the environment's dynamics), the reward (it
    learns what determines rewards), or a map around the agent of the cells observed in this episode (it learns to
    store observations)."""
    critic: Literal["history", "privileged"] = "history"
    """Inputs of the value head: the core's output alone, or also privileged information from the environment, which the
    policy does not receive and evaluation does not need."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.predict == "map" and not self.prediction_size:
            raise ValueError("prediction_size is 0; allowed with predict 'map': at least 1")
