"""A torso that changes with the observations it is shown, of one learner alone."""

from typing import Any

import torch
from torch import Tensor, nn

from engram.agents.custom.torso import Torso


class Drifting(Torso):
    """Observations minus the mean of the last batch."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self.output_size = 4
        self.layer = nn.Linear(int(torch.Size(spec.shape).numel()), 4)
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, observation: Any) -> Tensor:
        return self.layer(observation.flatten(1).float() / 255 - self.mean)

    def observe(self, observation: Any) -> None:
        self.mean.copy_(observation.float().mean() / 255)
