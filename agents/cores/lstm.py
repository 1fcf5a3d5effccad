"""LSTM, GRU, convolutional LSTM, and the initial memory span of gated units."""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import bf16
from ..kernels import linear
from .core import Axis, HiddenState, Projected, Step, Unrolled, under_torch_func
from .fast import gated as fast
from .fast.acting import Affine
from .fast.elementwise import Array
from .fast.routes import stands_for

SHORTEST = 3  # Smallest memory span for which biases exist
FORGET_BIAS = 1.0  # Added to ConvLSTM's forget gate, as in the released Conv2DLSTM


class LSTMState(NamedTuple):
    h: Tensor  # the last output [B, hidden_size]; of ConvLSTM [B, height * width, hidden_channels]
    c: Tensor  # the cells, likewise


class Cell(nn.LSTMCell):
    """torch's LSTM cell with explicit equations, since torch's operation has no rule for `torch.func.vmap`."""

    def forward(self, input: Tensor, hx: LSTMState) -> LSTMState:  # pyright: ignore[reportIncompatibleMethodOverride]
        gates = linear(input, self.weight_ih, self.bias_ih) + linear(hx[0], self.weight_hh, self.bias_hh)
        return lstm_step(gates, hx[1])


class LSTM(Projected):
    """LSTM (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000): one layer.

    i, f, g, o = W_x x + b_x + W_h h + b_h        four blocks of hidden_size rows, in this order
    c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h' = sigmoid(o) * tanh(c')                    the output

    Parameters, their order and their initialization are those of `torch.nn.LSTMCell`; `memory_span`: see `gate_biases`
    (of f). The initial state is zero.
    """

    parts_of_state = (Axis("unit", "h", 1), Axis("unit", "c", 1))

    def __init__(self, input_size: int, hidden_size: int = 256, memory_span: int = 0) -> None:
        super().__init__(input_size, hidden_size)
        self.cell = Cell(input_size, hidden_size)
        remember(self.cell, memory_span)

    def initial_state(self, batch_size: int) -> LSTMState:
        zeros = self.cell.weight_hh.new_zeros(batch_size, self.output_size)
        return LSTMState(zeros, zeros.clone())

    def forward(self, inputs: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        state = self.cell(inputs, state)
        return state.h, state

    def compiles(self, inputs: Tensor) -> bool:
        return type(self) is LSTM and stands_for(self, inputs)

    def fast_step(self, batch_size: int) -> Step | None:
        cell = self.cell
        if not self.compiles(cell.weight_hh):
            return None
        gates, steps = Affine(cell.weight_ih, cell.bias_ih + cell.bias_hh), fast.lstm_steps(cell.weight_hh, batch_size)

        def step(inputs: Tensor, reset: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
            after = LSTMState(*steps(gates(inputs.numpy()), reset.numpy(), *state))
            return after.h, after

        return step

    def unroll_compiled(self, inputs: Tensor, reset: Tensor, state: LSTMState, bptt_length: int | None) -> Unrolled:
        outputs, *last = fast.run(self._project(inputs), self.cell.weight_hh, *state, reset, bptt_length)
        return outputs, LSTMState(*last), None

    def _project(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.cell.weight_ih, self.cell.bias_ih + self.cell.bias_hh)

    def _step(self, x: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        after = lstm_step(torch.addmm(x, state.h, self.cell.weight_hh.t()), state.c)
        return after.h, after


def lstm_step(gates: Tensor, c: Tensor) -> LSTMState:
    """Return the next state from i, f, g, o [..., 4 H] before their nonlinearities and from the cells [..., H]."""
    i, f, g, o = gates.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return LSTMState(torch.sigmoid(o) * torch.tanh(c), c)


class GRU(Projected):
    """GRU (Cho et al. 2014): one layer, with the reset gate after the recurrent matrix multiplication.

    x_r, x_z, x_n = W_x x + b_x,   h_r, h_z, h_n = W_h h + b_h      three blocks of hidden_size rows, in this order
    r = sigmoid(x_r + h_r),  z = sigmoid(x_z + h_z),  n = tanh(x_n + r * h_n)
    h' = n + z * (h - n)                                            the output

    Parameters, their order and their initialization are those of `torch.nn.GRUCell`; `memory_span`: see `gate_biases`
    (of z). The initial state is zero.
    """

    parts_of_state = (Axis("unit", "h", 1),)

    def __init__(self, input_size: int, hidden_size: int = 256, memory_span: int = 0) -> None:
        super().__init__(input_size, hidden_size)
        self.cell = nn.GRUCell(input_size, hidden_size)
        remember(self.cell, memory_span)

    def initial_state(self, batch_size: int) -> HiddenState:
        return HiddenState(self.cell.weight_hh.new_zeros(batch_size, self.output_size))

    def forward(self, inputs: Tensor, state: HiddenState) -> tuple[Tensor, HiddenState]:
        if under_torch_func() or bf16.active():  # GRUCell supports neither vmap nor rounded factors
            return super().forward(inputs, state)
        h = self.cell(inputs, state.h)
        return h, HiddenState(h)

    def compiles(self, inputs: Tensor) -> bool:
        return type(self) is GRU and stands_for(self, inputs)

    def unroll_compiled(self, inputs: Tensor, reset: Tensor, state: HiddenState, bptt_length: int | None) -> Unrolled:
        cell = self.cell
        from_h, inner = cell.bias_hh.split([2 * self.output_size, self.output_size])
        gates = linear(inputs, cell.weight_ih, cell.bias_ih + F.pad(from_h, (0, self.output_size)))
        none = state.h.new_empty(len(state.h), 0)
        outputs, h, _ = fast.run(gates, cell.weight_hh, state.h, none, reset, bptt_length, inner)
        return outputs, HiddenState(h), None

    def _project(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.cell.weight_ih, self.cell.bias_ih)

    def _step(self, x: Tensor, state: HiddenState) -> tuple[Tensor, HiddenState]:
        size = self.output_size
        from_h = linear(state.h, self.cell.weight_hh, self.cell.bias_hh)
        r, z = torch.sigmoid(x[:, : 2 * size] + from_h[:, : 2 * size]).chunk(2, 1)
        n = torch.tanh(x[:, 2 * size :] + r * from_h[:, 2 * size :])
        h = torch.lerp(n, state.h, z)
        return h, HiddenState(h)


def gate_biases(units: int, memory_span: int) -> Tensor:
    """b = log(u), u ~ U(1, memory_span - 1), float32 [units], so that units, which retain the share sigmoid(b) per
    step, forget within 2 to memory_span steps (Tallec & Ollivier 2018, "Can recurrent neural networks warp time?").
    Unlike there, an LSTM's input gate keeps its bias, since writes would shrink as the span grows."""
    if memory_span < SHORTEST:
        raise ValueError(f"memory_span is {memory_span}; allowed: 0 (torch's biases) or at least {SHORTEST} steps")
    return torch.empty(units).uniform_(1, memory_span - 1).log_()


def remember(cell: nn.LSTMCell | nn.GRUCell, memory_span: int) -> None:
    """Bias the gate that forgets: the second block of rows in both of torch's cells. 0 keeps torch's biases."""
    if memory_span == 0:
        return
    rows = slice(cell.hidden_size, 2 * cell.hidden_size)
    with torch.no_grad():
        cell.bias_ih[rows] = gate_biases(cell.hidden_size, memory_span)
        cell.bias_hh[rows] = 0.0


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
