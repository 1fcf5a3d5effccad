"""Critic with more inputs than the policy: the value head reads the core's output and privileged information.

The critic is unbiased, since it also reads the history through the core's output (Baisero and Amato 2022, "Unbiased
asymmetric reinforcement learning under partial observability"; Pinto et al. 2018, "Asymmetric actor critic for
image-based robot learning").
"""

import torch
from torch import Tensor, nn

from .normalization import Moments

HIDDEN = 64  # Units that combine the core's output with privileged information


class PrivilegedCritic(nn.Module):
    """Inputs of the value head: the core's output y, and a hidden layer over y and the privileged information p.

        [y, relu(W [y, (p - mean) / deviation] + b)]

    Args:
        inputs: D, the width of the core's output.
        size: P, number of privileged values.
    """

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.moments = Moments(size, memory=1e7)
        self.hidden = nn.Linear(inputs + size, HIDDEN)
        self.output_size = inputs + HIDDEN

    def forward(self, outputs: Tensor, privileged: Tensor | None) -> Tensor:
        """[..., D] and [..., P] -> [..., D + HIDDEN]; without information, as in evaluation, its mean is used."""
        size = self.moments.mean.shape[0]
        if privileged is None:
            information = outputs.new_zeros(*outputs.shape[:-1], size)
        else:
            information = self.moments(privileged.to(outputs.dtype))
        return torch.cat([outputs, torch.relu(self.hidden(torch.cat([outputs, information], -1)))], -1)
