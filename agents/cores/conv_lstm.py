"""Convolutional LSTM (Shi et al. 2015, without peepholes): BoxWorld's baseline in the RMC paper (appendix A.3)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .core import Core, at_least_one, full_precision
from .lstm import LSTMSteps
from .recurrence import Tape, run, run_once

FORGET_BIAS = 1.0
"""Added to the forget gate, as in the released Conv2DLSTM."""


class ConvLSTMState(NamedTuple):
    """h, c [B, height * width, hidden_channels]: output and cells, one vector per place."""

    h: Tensor
    c: Tensor


class ConvLSTM(Core):
    """An LSTM at every place of a grid, which sees its neighbours through a convolution.

    i, f, g, o = K_x * x + b_x + K_h * h + b_h       four blocks of hidden_channels, in this order
    c' = sigmoid(f + 1) c + sigmoid(i) tanh(g)
    h' = sigmoid(o) tanh(c')                         the output, flattened: height * width * hidden_channels

    `*` is a convolution of kernel_size, stride 1, zero padding to the same size (for an even kernel the extra row
    is below, the extra column to the right). The input is an image [channels, height, width], flattened in this
    order; features beyond channels * height * width (a previous action, say) become constant planes. Of the three
    sizes `channels` may be left out; with none given the image is taken to be the largest square whose area
    divides input_size (650 = 26 planes of 5 x 5).

    Kernels are drawn from a normal of standard deviation 1/sqrt(fan in) cut at two of them; biases start at zero,
    and so does the state. Differentiable once.
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
        at_least_one(hidden_channels=hidden_channels, kernel_size=kernel_size)
        self.channels, self.height, self.width = image_size(input_size, height, width, channels)
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

    def initial_state(self, batch_size: int) -> ConvLSTMState:
        """Zeros."""
        zeros = self.state_conv.weight.new_zeros(batch_size, self.height * self.width, self.hidden_channels)
        return ConvLSTMState(zeros, zeros.clone())

    @full_precision
    def forward(self, inputs: Tensor, state: ConvLSTMState) -> tuple[Tensor, ConvLSTMState]:
        """inputs [B, input_size], state -> output [B, height * width * hidden_channels], next state."""
        state = run_once(self._steps, self._tensors(inputs.unsqueeze(0)), state)
        return state.h.flatten(1), state

    @full_precision
    def unroll(
        self, inputs: Tensor, reset: Tensor, state: ConvLSTMState, bptt_length: int | None = None
    ) -> tuple[Tensor, ConvLSTMState, None]:
        """As `Core.unroll`; the inputs of all steps are convolved at once."""
        initial = self.initial_state(inputs.shape[1])
        h, state = run(self._steps, self._tensors(inputs), state, initial, reset, bptt_length)
        return h.flatten(2), state, None

    def _steps(self, from_input: Tensor, weight: Tensor) -> "ConvLSTMSteps":
        return ConvLSTMSteps(self.height, self.width, self.kernel_size, from_input, weight)

    def _tensors(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """What `ConvLSTMSteps` takes, for inputs [T, B, input_size]."""
        image, extra = inputs.flatten(0, 1).split(self.parts, dim=-1)
        planes = image.view(-1, self.channels, self.height, self.width)
        if self.parts[1]:
            planes = torch.cat([planes, extra[:, :, None, None].expand(-1, -1, self.height, self.width)], 1)
        before, after = same_padding(self.kernel_size)
        planes = functional.pad(planes, (before, after, before, after)).contiguous(memory_format=torch.channels_last)
        gates = self.input_conv(planes).permute(0, 2, 3, 1)
        assert self.state_conv.bias is not None
        bias = self.state_conv.bias + FORGET_BIAS * (torch.arange(4, device=gates.device) == 1).repeat_interleave(
            self.hidden_channels
        )
        weight = self.state_conv.weight.permute(0, 2, 3, 1).flatten(1)
        return gates.reshape(len(inputs), -1, gates.shape[-1]) + bias, weight


class ConvLSTMSteps(LSTMSteps):
    """LSTM on rows that are the places of all images, whose recurrent weights see each place's neighbourhood."""

    def __init__(self, height: int, width: int, kernel_size: int, from_input: Tensor, weight: Tensor) -> None:
        """from_input [T, B * places, 4 channels], weight [4 channels, kernel_size^2 * channels]."""
        super().__init__(from_input, weight)
        self.height, self.width, self.kernel_size = height, width, kernel_size
        self.padding = same_padding(kernel_size)

    def forward(self, t: int, state: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """h, c [B, places, channels] before step t -> after it."""
        shape = state[0].shape
        return [leaf.view(shape) for leaf in super().forward(t, [leaf.flatten(0, 1) for leaf in state], tape)]

    def backward(self, t: int, grads: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """Gradients of h, c after step t -> before it."""
        shape = grads[0].shape
        return [grad.view(shape) for grad in super().backward(t, [grad.flatten(0, 1) for grad in grads], tape)]

    def seen(self, h: Tensor) -> Tensor:
        """The neighbourhoods of all places: [R, channels] -> [R, kernel_size^2 * channels]."""
        image = h.view(-1, self.height, self.width, h.shape[1])
        padded = functional.pad(image, (0, 0, *self.padding, *self.padding))
        return torch.cat([padded[window] for window in self._windows()], -1).flatten(0, 2)

    def seen_backward(self, grad: Tensor) -> Tensor:
        """[R, kernel_size^2 * channels] -> [R, channels]."""
        before, after = self.padding
        height, width = self.height, self.width
        channels = grad.shape[1] // self.kernel_size**2
        images = grad.view(-1, height, width, self.kernel_size**2, channels)
        padded = grad.new_zeros(len(images), height + before + after, width + before + after, channels)
        for place, window in enumerate(self._windows()):
            padded[window] += images[:, :, :, place]
        return padded[:, before : before + height, before : before + width].reshape(-1, channels)

    def _windows(self) -> list[tuple[slice, slice, slice]]:
        """Where in the padded images each place of the kernel looks."""
        size = range(self.kernel_size)
        return [(slice(None), slice(i, i + self.height), slice(j, j + self.width)) for i in size for j in size]


def same_padding(kernel_size: int) -> tuple[int, int]:
    """Rows (columns) of zeros before and after, so that a convolution keeps the size."""
    return (kernel_size - 1) // 2, kernel_size // 2


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
