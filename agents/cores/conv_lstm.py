"""Convolutional LSTM."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .core import Axis, Projected, Unrolled, under_torch_func
from .fast import gated as fast
from .fast.elementwise import Array
from .fast.routes import stands_for
from .lstm import LSTMState, lstm_step

FORGET_BIAS = 1.0  # Added to the forget gate, as in the released Conv2DLSTM


class ConvLSTM(Projected):
    """Convolutional LSTM: an LSTM at every position of a grid, connected to its neighbors.
    Shi et al. 2015, without peepholes: BoxWorld's baseline in the RMC paper (appendix A.3).

    i, f, g, o = K_x * x + b_x + K_h * h + b_h       four blocks of hidden_channels, in this order
    c' = sigmoid(f + 1) c + sigmoid(i) tanh(g)
    h' = sigmoid(o) tanh(c')                         the output, flattened: height * width * hidden_channels

    `*` is a convolution with kernel_size, stride 1 and zero padding to the same size (for an even kernel, the extra row
    is below, the extra column on the right). The input is an image [channels, height, width], flattened, whose sizes
    a torso with convolutions supplies; further features (such as a previous action) become constant planes. `channels`
    may be omitted; without any size, the image is the largest square whose area divides input_size. Kernels are normal
    with standard deviation 1/sqrt(fan in), truncated at two deviations; biases and state start at zero.
    """

    parts_of_state = (Axis("channel", "h", 2), Axis("channel", "c", 2))

    def __init__(
        self,
        input_size: int,
        height: int | None = None,
        width: int | None = None,
        channels: int | None = None,
        hidden_channels: int = 64,
        kernel_size: int = 2,
    ) -> None:
        channels, height, width = image_size("conv-lstm", input_size, height, width, channels)
        super().__init__(input_size, hidden_channels * height * width)
        self.channels, self.height, self.width = channels, height, width
        self.hidden_channels, self.kernel_size = hidden_channels, kernel_size
        image = channels * height * width
        self.parts = [image, input_size - image]
        planes = channels + input_size - image
        self.input_conv = nn.Conv2d(planes, 4 * hidden_channels, kernel_size)
        self.state_conv = nn.Conv2d(hidden_channels, 4 * hidden_channels, kernel_size)
        for conv, fan_in in ((self.input_conv, planes), (self.state_conv, hidden_channels)):
            std = (fan_in * kernel_size**2) ** -0.5
            nn.init.trunc_normal_(conv.weight, std=std, a=-2 * std, b=2 * std)
            assert conv.bias is not None
            nn.init.zeros_(conv.bias)
        self.places = neighborhoods(height, width, kernel_size)

    @classmethod
    def image_options(cls, channels: int, rows: int, cols: int) -> dict[str, int]:
        return {"channels": channels, "height": rows, "width": cols}

    def initial_state(self, batch_size: int) -> LSTMState:
        zeros = self.state_conv.weight.new_zeros(batch_size, self.height * self.width, self.hidden_channels)
        return LSTMState(zeros, zeros.clone())

    def forward(self, inputs: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        if self.compiles(inputs):
            reset = inputs.new_zeros(1, len(inputs), dtype=torch.bool)
            outputs, state, _ = self.unroll_compiled(inputs.unsqueeze(0), reset, state, None)
            return outputs[0], state
        return super().forward(inputs, state)

    def compiles(self, inputs: Tensor) -> bool:
        return type(self) is ConvLSTM and stands_for(self, inputs)

    def unroll_compiled(self, inputs: Tensor, reset: Tensor, state: LSTMState, bptt_length: int | None) -> Unrolled:
        """`unroll` in compiled code, with the inputs of all steps convolved at once."""
        weight = self.state_conv.weight.permute(0, 2, 3, 1).flatten(1)
        assert self.state_conv.bias is not None
        gates = self._project(inputs) + self.state_conv.bias
        outputs, *last = fast.run(gates, weight, *state, reset, bptt_length, places=self.places)
        return outputs.flatten(2), LSTMState(*last), None

    def _project(self, inputs: Tensor) -> Tensor:
        """Return K_x * x + b_x, plus the forget gate's bias: [..., positions, 4 channels]."""
        image, extra = inputs.flatten(0, -2).split(self.parts, dim=-1)
        planes = image.unflatten(1, (self.channels, self.height, self.width))
        if self.parts[1]:
            planes = torch.cat([planes, extra[:, :, None, None].expand(-1, -1, self.height, self.width)], 1)
        gates = self.input_conv(self._padded(planes)).flatten(2).transpose(1, 2)
        size = self.hidden_channels
        bias = F.pad(gates.new_full((size,), FORGET_BIAS), (size, 2 * size))
        return (gates + bias).unflatten(0, inputs.shape[:-1])

    def _step(self, x: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        image = state.h.transpose(1, 2).unflatten(2, (self.height, self.width))
        gates = x + self.state_conv(self._padded(image)).flatten(2).transpose(1, 2)
        after = lstm_step(gates, state.c)
        return after.h.flatten(1), after

    def _padded(self, image: Tensor) -> Tensor:
        """Pad with zeros so that the convolution preserves the size."""
        before, after = same_padding(self.kernel_size)
        padded = F.pad(image, (before, after, before, after))
        return padded if under_torch_func() else padded.contiguous(memory_format=torch.channels_last)


def same_padding(kernel_size: int) -> tuple[int, int]:
    """Return the rows (or columns) of zeros before and after with which a convolution preserves the size."""
    return (kernel_size - 1) // 2, kernel_size // 2


def neighborhoods(height: int, width: int, kernel_size: int) -> Array:
    """int64 [height * width, kernel_size^2]: position under each kernel element; -1 is zero padding."""
    before, after = same_padding(kernel_size)
    positions = np.arange(height * width).reshape(height, width)
    padded = np.pad(positions, (before, after), constant_values=-1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel_size, kernel_size))
    return np.ascontiguousarray(windows.reshape(height * width, kernel_size**2))


def image_size(
    core: str, input_size: int, height: int | None, width: int | None, channels: int | None
) -> tuple[int, int, int]:
    """Return (channels, height, width) of the image with which a core's `input_size` features begin: see `ConvLSTM`.
    Raises ValueError, naming `core`, if there is no such image or it does not fit."""
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
