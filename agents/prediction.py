"""An auxiliary loss that teaches the memory how its world goes on: the next observation is predicted.

What a memory holds is otherwise learnt from rewards alone, and as long as the policy makes no use of it, they say
nothing about it. The next observation says at every step what should have been kept. Source of the method: Jaderberg et
al. 2017, "Reinforcement learning with unsupervised auxiliary tasks".
"""

import torch
from torch import Tensor, nn

from .normalisation import Moments
from .specs import ObservationSpec, scaled
from .values import ObservationTensor


class Prediction(nn.Module):
    """The next observation, predicted by one hidden layer from what the core puts out and the action taken.

    Args:
        spec: the observation of S numbers in all.
        inputs: D, width of the core's output and the action together.
        hidden: units of the hidden layer.
    """

    def __init__(self, spec: ObservationSpec, inputs: int, hidden: int) -> None:
        super().__init__()
        self.spec = spec
        size = _size(spec)
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, size))
        self.moments = Moments(size, memory=1e7, floor=1e-2)

    def forward(self, inputs: Tensor, following: ObservationTensor) -> Tensor:
        """Inputs [T, B, D] and the observations after them [T, B, ...] -> the loss [T, B].

        Half the mean squared error of the observation's numbers, each in units of its running mean and deviation:
        about 1/2 for a prediction that knows nothing.
        """
        numbers = self.moments(_numbers(self.spec, following))
        return 0.5 * (self.layers(inputs) - numbers).square().mean(-1)

    def observe(self, observation: ObservationTensor) -> None:
        """Count observations [R, B, ...] into the running moments."""
        numbers = _numbers(self.spec, observation).flatten(0, 1)
        self.moments.update(numbers, float(len(numbers)))


def _size(spec: ObservationSpec) -> int:
    """How many numbers an observation has."""
    return sum(map(_size, spec.values())) if isinstance(spec, dict) else torch.Size(spec.shape).numel()


def _numbers(spec: ObservationSpec, observation: ObservationTensor) -> Tensor:
    """The numbers [T, B, S] of observations [T, B, ...]; parts of a dict in the order of sorted keys."""
    if isinstance(spec, dict):
        return torch.cat([_numbers(spec[key], observation[key]) for key in sorted(spec)], -1)
    return scaled(observation, spec.scale).flatten(2) if spec.shape else scaled(observation, spec.scale).unsqueeze(-1)
