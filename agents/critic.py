"""A critic that is told more than the policy: the value head reads the core's output and privileged information.

Unbiased, since it also reads the history through the core's output (Baisero and Amato 2022, "Unbiased asymmetric
reinforcement learning under partial observability"; Pinto et al. 2018, "Asymmetric actor critic for image-based robot
learning").
"""

import torch
from torch import Tensor, nn

from .normalization import Moments

HIDDEN = 64
"""Units that combine the core's output with privileged information."""


class PrivilegedCritic(nn.Module):
    """Inputs of the value head: the core's output y and what a hidden layer makes of it and of the information p.

        [y, relu(W [y, (p - mean) / deviation] + b)]

    Args:
        inputs: D, width of the core's output.
        size: P, privileged values.
    """

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.moments = Moments(size, memory=1e7)
        self.hidden = nn.Linear(inputs + size, HIDDEN)
        self.output_size = inputs + HIDDEN

    def forward(self, outputs: Tensor, privileged: Tensor | None) -> Tensor:
        """[..., D] and [..., P] -> [..., D + HIDDEN]; without information, as in evaluation, its mean stands for it."""
        size = self.moments.mean.shape[0]
        if privileged is None:
            known = outputs.new_zeros(*outputs.shape[:-1], size)
        else:
            known = self.moments(privileged.to(outputs.dtype))
        return torch.cat([outputs, torch.relu(self.hidden(torch.cat([outputs, known], -1)))], -1)
