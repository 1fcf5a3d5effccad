"""A causal convolution over the last few steps of every channel, exact at resets and cuts."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..fast.scan import Convolution


class ShortConvolution(nn.Module):
    """silu(b + sum_i w_i x_{t-i}), i = 0 .. size - 1, per channel; size 1 leaves x unchanged.

    Inputs before an episode's first step are zero. State: the last size - 1 inputs [B, size - 1, channels],
    the newest last.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.channels, self.size = channels, size
        bound = size**-0.5
        # Row i: the weight of the input i steps ago.
        self.taps = nn.Parameter(torch.empty(size, channels).uniform_(-bound, bound)) if size > 1 else None
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if size > 1 else None
        self.register_buffer("like", torch.zeros(0), persistent=False)

    def initial_state(self, batch_size: int) -> Tensor:
        """Return zeros [batch_size, size - 1, channels]."""
        assert isinstance(self.like, Tensor)
        return self.like.new_zeros(batch_size, self.size - 1, self.channels)

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """One step: x [B, channels], past -> [B, channels], next past."""
        if self.taps is None or self.bias is None:
            return x, past
        window = torch.cat([past, x.unsqueeze(1)], 1)
        return F.silu((window * self.taps.flip(0)).sum(1) + self.bias), window[:, 1:]

    def unroll(self, x: Tensor, reset: Tensor, past: Tensor, bptt_length: int | None) -> tuple[Tensor, Tensor]:
        """x [T, B, channels], reset bool [T, B], past -> [T, B, channels], last past; in compiled code."""
        if self.taps is None or self.bias is None:
            return x, past
        length, cut = len(x), bptt_length or 0
        whole = torch.cat([past.transpose(0, 1), x])  # step t is row t + size - 1
        time = torch.arange(length).unsqueeze(1)
        began = torch.where(reset, time, -self.size).cummax(0).values  # the episode's first step, if in this unroll
        total: Any = Convolution.apply(whole, self.taps, began, cut)
        times = torch.arange(length - self.size + 1, length).unsqueeze(1)
        last, piece = whole[1 - self.size :], (length - 1) // cut * cut if cut else 0
        if piece:
            last = torch.where((times < piece).unsqueeze(2), last.detach(), last)
        in_episode = (times >= began[-1]).unsqueeze(2)
        return F.silu(total + self.bias), torch.where(in_episode, last, 0.0).transpose(0, 1)
