"""Convolutional LSTM (Shi et al. 2015, without peepholes): BoxWorld's baseline in the RMC paper (appendix A.3)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .contract.conditions import under_torch_func
from .core import Axis, Core, unroll_step_by_step
from .parts.images import image_size

FORGET_BIAS = 1.0  # Added to the forget gate, as in the released Conv2DLSTM


class ConvLSTMState(NamedTuple):
    """h, c [B, height * width, hidden_channels]: output and cells, one vector per place."""

    h: Tensor
    c: Tensor


class ConvLSTM(Core):
    """An LSTM at every place of a grid, connected to its neighbors by a convolution.

    i, f, g, o = K_x * x + b_x + K_h * h + b_h       four blocks of hidden_channels, in this order
    c' = sigmoid(f + 1) c + sigmoid(i) tanh(g)
    h' = sigmoid(o) tanh(c')                         the output, flattened: height * width * hidden_channels

    `*` is a convolution of kernel_size, stride 1, zero padding to the same size (for an even kernel the extra row
    is below, the extra column to the right). The input is an image [channels, height, width], flattened in this
    order; features beyond channels * height * width (a previous action, say) become constant planes. An agent whose
    torso has convolutions supplies the three sizes. `channels` may be omitted; without any size, the image is
    the largest square whose area divides input_size (650 = 26 planes of 5 x 5).

    Kernels are sampled from a normal of standard deviation 1/sqrt(fan in) truncated at two deviations; biases start
    at zero, as does the state.
    """

    def __init__(
        self,
        input_size: int,
        height: int | None = None,
        width: int | None = None,
        channels: int | None = None,
        hidden_channels: int = 64,
        kernel_size: int = 2,
    ) -> None:
        super().__init__()
        self.channels, self.height, self.width = image_size("conv-lstm", input_size, height, width, channels)
        self.hidden_channels, self.kernel_size = hidden_channels, kernel_size
        self.input_size, self.output_size = input_size, hidden_channels * self.height * self.width
        image = self.channels * self.height * self.width
        self.parts = [image, input_size - image]
        planes = self.channels + input_size - image
        self.input_conv = nn.Conv2d(planes, 4 * hidden_channels, kernel_size)
        self.state_conv = nn.Conv2d(hidden_channels, 4 * hidden_channels, kernel_size)
        for conv, fan_in in ((self.input_conv, planes), (self.state_conv, hidden_channels)):
            std = (fan_in * kernel_size**2) ** -0.5
            nn.init.trunc_normal_(conv.weight, std=std, a=-2 * std, b=2 * std)
            assert conv.bias is not None
            nn.init.zeros_(conv.bias)

    @classmethod
    def image_options(cls, channels: int, rows: int, cols: int) -> dict[str, int]:
        return {"channels": channels, "height": rows, "width": cols}

    def initial_state(self, batch_size: int) -> ConvLSTMState:
        zeros = self.state_conv.weight.new_zeros(batch_size, self.height * self.width, self.hidden_channels)
        return ConvLSTMState(zeros, zeros.clone())

    def parts_of_state(self) -> dict[str, list[Axis]]:
        return {"channel": [Axis(leaf, 2, self.hidden_channels) for leaf in ("h", "c")]}

    def forward(self, inputs: Tensor, state: ConvLSTMState) -> tuple[Tensor, ConvLSTMState]:
        return self._step(self._from_input(inputs), state)

    def unroll_at_once(
        self, inputs: Tensor, reset: Tensor, state: ConvLSTMState, bptt_length: int | None = None
    ) -> tuple[Tensor, ConvLSTMState, Tensor | None]:
        gates = self._from_input(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2])
        return unroll_step_by_step(self, gates, reset, state, bptt_length, self._step)

    def _from_input(self, inputs: Tensor) -> Tensor:
        """K_x * x + b_x with the forget gate's bias, of inputs [R, input_size]: [R, places, 4 channels]."""
        image, extra = inputs.split(self.parts, dim=-1)
        planes = image.unflatten(1, (self.channels, self.height, self.width))
        if self.parts[1]:
            planes = torch.cat([planes, extra[:, :, None, None].expand(-1, -1, self.height, self.width)], 1)
        gates = self.input_conv(self._padded(planes)).flatten(2).transpose(1, 2)
        size = self.hidden_channels
        bias = functional.pad(gates.new_full((size,), FORGET_BIAS), (size, 2 * size))
        return gates + bias

    def _step(self, from_input: Tensor, state: ConvLSTMState) -> tuple[Tensor, ConvLSTMState]:
        """from_input [B, places, 4 channels], state -> output [B, places * channels], next state."""
        image = state.h.transpose(1, 2).unflatten(2, (self.height, self.width))
        gates = from_input + self.state_conv(self._padded(image)).flatten(2).transpose(1, 2)
        i, f, g, o = gates.chunk(4, 2)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h.flatten(1), ConvLSTMState(h, c)

    def _padded(self, image: Tensor) -> Tensor:
        """Pad with zeros, so that the convolution preserves the size."""
        before, after = same_padding(self.kernel_size)
        padded = functional.pad(image, (before, after, before, after))
        return padded if under_torch_func() else padded.contiguous(memory_format=torch.channels_last)


def same_padding(kernel_size: int) -> tuple[int, int]:
    """Rows (columns) of zeros before and after, so that a convolution preserves the size."""
    return (kernel_size - 1) // 2, kernel_size // 2
