"""An auxiliary loss that teaches the memory how its world goes on: the next observation is predicted.

What a memory holds is otherwise learnt from rewards alone, and as long as the policy makes no use of it, they say
nothing about it. The next observation says at every step what should have been kept. Source of the method: Jaderberg et
al. 2017, "Reinforcement learning with unsupervised auxiliary tasks".
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .normalisation import Moments
from .specs import ArraySpec, ObservationSpec, channels_first, scaled, with_channels_last
from .values import ObservationTensor

MOST_NUMBERS = 4096
"""Numbers from which on a picture is predicted as averages over its parts."""
PARTS = 20
"""Rows and columns of these averages."""


class Prediction(nn.Module):
    """The next observation, predicted by one hidden layer from what the core puts out and the action taken.

    A picture of more than 4,096 numbers is predicted as a picture of 20 x 20 averages.

    Args:
        spec: the observation; S numbers are predicted of it.
        inputs: D, width of the core's output and the action together.
        hidden: units of the hidden layer.
        layout: axis of an image that holds its channels, as `TorsoConfig.image_layout`.
    """

    def __init__(self, spec: ObservationSpec, inputs: int, hidden: int, layout: str = "auto") -> None:
        super().__init__()
        self.spec, self.layout = spec, layout
        with torch.device("cpu"):  # also where the weights have no numbers
            size = _numbers(spec, layout, _nothing(spec)).shape[-1]
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, size))
        self.moments = Moments(size, memory=1e7, floor=1e-2)

    def forward(self, inputs: Tensor, following: ObservationTensor) -> Tensor:
        """Inputs [T, B, D] and the observations after them [T, B, ...] -> the loss [T, B].

        Half the mean squared error of the observation's numbers, each in units of its running mean and deviation:
        about 1/2 for a prediction that knows nothing.
        """
        numbers = self.moments(_numbers(self.spec, self.layout, following))
        return 0.5 * (self.layers(inputs) - numbers).square().mean(-1)

    def observe(self, observation: ObservationTensor) -> None:
        """Count observations [R, B, ...] into the running moments."""
        numbers = _numbers(self.spec, self.layout, observation).flatten(0, 1)
        self.moments.update(numbers, float(len(numbers)))


def _nothing(spec: ObservationSpec) -> ObservationTensor:
    """An observation [1, 1, ...] of zeros."""
    if isinstance(spec, dict):
        return {key: _nothing(part) for key, part in spec.items()}
    return torch.zeros(1, 1, *spec.shape)


def _numbers(spec: ObservationSpec, layout: str, observation: ObservationTensor) -> Tensor:
    """The numbers [T, B, S] of observations [T, B, ...]; parts of a dict in the order of sorted keys."""
    if isinstance(spec, dict):
        return torch.cat([_numbers(spec[key], layout, observation[key]) for key in sorted(spec)], -1)
    x = scaled(observation, spec.scale)
    if len(spec.shape) == 3 and x[0, 0].numel() > MOST_NUMBERS:
        x = _averages(spec, layout, x)
    return x.flatten(2) if spec.shape else x.unsqueeze(-1)


def _averages(spec: ArraySpec, layout: str, pictures: Tensor) -> Tensor:
    """Pictures [T, B, ...] -> [T, B, channels, 20, 20], or fewer rows or columns where they have fewer."""
    last = with_channels_last(pictures.flatten(0, 1), channels_first(spec.shape, layout))
    parts = min(last.shape[1], PARTS), min(last.shape[2], PARTS)
    return functional.adaptive_avg_pool2d(last.permute(0, 3, 1, 2), parts).unflatten(0, pictures.shape[:2])
