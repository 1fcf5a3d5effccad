"""Convolutional LSTM (Shi et al. 2015, without peepholes): BoxWorld's baseline in the RMC paper (appendix A.3)."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .core import Core

FORGET_BIAS = 1.0
"""Added to the forget gate, as in the released Conv2DLSTM."""


class ConvLSTMState(NamedTuple):
    """h, c [B, hidden_channels, height, width]: output and cells, one vector per place."""

    h: Tensor
    c: Tensor


class ConvLSTM(Core):
    """An LSTM at every place of a grid, which sees its neighbours through a convolution.

    i, g, f, o = K_x * x + b_x + K_h * h + b_h       four blocks of hidden_channels, in this order
    c' = sigmoid(f + 1) c + sigmoid(i) tanh(g)
    h' = sigmoid(o) tanh(c')                         the output, flattened: hidden_channels * height * width

    `*` is a convolution of kernel_size, stride 1, zero padding to the same size (for an even kernel the extra row
    is below, the extra column to the right). The input is an image [channels, height, width], flattened in this
    order; features beyond channels * height * width (a previous action, say) become constant planes. Of the three
    sizes `channels` may be left out; with none given the image is taken to be the largest square whose area
    divides input_size (650 = 26 planes of 5 x 5).

    Kernels are drawn from a normal of standard deviation 1/sqrt(fan in) cut at two of them; biases start at zero,
    and so does the state.
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
        self.channels, self.height, self.width = image_size(input_size, height, width, channels)
        self.hidden_channels = hidden_channels
        self.output_size = hidden_channels * self.height * self.width
        image = self.channels * self.height * self.width
        self.parts = [image, input_size - image]
        planes = self.channels + input_size - image
        self.input_conv = nn.Conv2d(planes, 4 * hidden_channels, kernel_size)
        self.state_conv = nn.Conv2d(hidden_channels, 4 * hidden_channels, kernel_size)
        before, after = (kernel_size - 1) // 2, kernel_size // 2
        self.padding = (before, after, before, after)
        for conv, fan_in in ((self.input_conv, planes), (self.state_conv, hidden_channels)):
            std = (fan_in * kernel_size**2) ** -0.5
            nn.init.trunc_normal_(conv.weight, std=std, a=-2 * std, b=2 * std)
            assert conv.bias is not None
            nn.init.zeros_(conv.bias)

    def initial_state(self, batch_size: int) -> ConvLSTMState:
        """Zeros, float32."""
        shape = (batch_size, self.hidden_channels, self.height, self.width)
        zeros = torch.zeros(shape, device=self.state_conv.weight.device)
        return ConvLSTMState(zeros, zeros.clone())

    def forward(self, inputs: Tensor, state: ConvLSTMState) -> tuple[Tensor, ConvLSTMState]:
        """inputs [B, input_size], state -> output [B, hidden_channels * height * width], next state."""
        return self._step(self._input_gates(inputs), state)

    def _input_gates(self, inputs: Tensor) -> Tensor:
        """[R, input_size] -> K_x * x + b_x, [R, 4 hidden_channels, height, width]."""
        image, extra = inputs.split(self.parts, dim=-1)
        planes = image.unflatten(-1, (self.channels, self.height, self.width))
        constant = extra[:, :, None, None].expand(-1, -1, self.height, self.width)
        return self.input_conv(F.pad(torch.cat([planes, constant], 1), self.padding))

    def _step(self, input_gates: Tensor, state: ConvLSTMState) -> tuple[Tensor, ConvLSTMState]:
        gates = input_gates + self.state_conv(F.pad(state.h, self.padding))
        i, g, f, o = gates.chunk(4, dim=1)
        c = torch.sigmoid(f + FORGET_BIAS) * state.c + torch.sigmoid(i) * g.tanh()
        h = torch.sigmoid(o) * c.tanh()
        return h.flatten(1), ConvLSTMState(h, c)


def image_size(input_size: int, height: int | None, width: int | None, channels: int | None) -> tuple[int, int, int]:
    """(channels, height, width) of the image at the head of `input_size` features; see ConvLSTM."""
    if height is None and width is None and channels is None:
        side = max(s for s in range(1, math.isqrt(input_size) + 1) if input_size % s**2 == 0)
        if side == 1:
            raise ValueError(f"no square image divides input_size {input_size}; give core 'conv-lstm' height and width")
        return input_size // side**2, side, side
    if height is None or width is None:
        raise ValueError(f"core 'conv-lstm' needs height and width together; got height={height}, width={width}")
    planes = input_size // (height * width) if channels is None else channels
    if not 0 < planes * height * width <= input_size:
        raise ValueError(
            f"an image of {channels or 'at least one'} x {height} x {width} does not fit in input_size {input_size}"
        )
    return planes, height, width
