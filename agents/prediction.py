"""An auxiliary loss for the memory: the next observation or reward is predicted from the core's output and the action.

What a memory keeps is otherwise learned from rewards alone, and before the policy depends on it they say nothing about
it. The next observation says something at every step. A predicted reward says of this one action whether it was right,
where an advantage also holds what was earned later. Sources: Oh et al. 2015, "Action-conditional video prediction using
deep networks in Atari games" (prediction from a recurrent state and the action); Wayne et al. 2018, "Unsupervised
predictive memory in a goal-directed agent" (predictions that teach a memory what to keep); Jaderberg et al. 2017,
"Reinforcement learning with unsupervised auxiliary tasks" (a loss beside the policy's; predicted rewards).

A map of what was seen so far in the episode is another target. It is the agent's own past, no privileged information,
and teaches at every step what a memory has to store (Zhang et al. 2017, "Neural SLAM").
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .normalization import Moments
from .specs import ArraySpec, MapSpec, ObservationSpec, channels_first, with_channels_last
from .values import ObservationTensor

MOST_NUMBERS = 4096
"""An array of more numbers is predicted as averages over its parts."""
REWARD = ArraySpec((1,))
"""The reward, as something to predict."""
PARTS = 20
"""Rows and columns of a picture's averages."""
CELL = 16
"""Features of each cell of the map, from which one layer shared by all cells predicts what it shows."""


class Prediction(nn.Module):
    """The next observation or reward, predicted through one hidden layer.

    Of a picture of more than 4,096 numbers 20 x 20 averages of each channel are predicted, of any other array of more
    numbers 4,096 averages of neighbors.

    Args:
        spec: the observation, or REWARD; S numbers are predicted of it.
        inputs: D, width of the core's output and the action together.
        hidden: H, units of the hidden layer.
        layout: axis of an image that holds its channels, as `TorsoConfig.image_layout`.
        memory: the most steps that make up the running moments.
    """

    def __init__(
        self, spec: ObservationSpec, inputs: int, hidden: int, layout: str = "auto", memory: float = 1e7
    ) -> None:
        super().__init__()
        self.spec, self.layout = spec, layout
        with torch.device("cpu"):  # also where the weights have no numbers
            size = _numbers(spec, layout, _zeros(spec)).shape[-1]
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, size))
        self.moments = Moments(size, memory)

    def forward(self, inputs: Tensor, following: ObservationTensor) -> Tensor:
        """Inputs [T, B, D] and what came after them [T, B, ...] -> the loss [T, B].

        p = W_2 relu(W_1 inputs + b_1) + b_2,    loss = 1/2 mean_S (p - (x - mean) / deviation)^2

        with x the S numbers, unscaled, and their running mean and deviation. p = 0 has a loss of at most about 1/2:
        numbers that never change add nothing. 0 before anything was observed, since x has no units yet.
        """
        values = self.moments(_numbers(self.spec, self.layout, following))
        loss = 0.5 * (self.layers(inputs) - values).square().mean(-1)
        return torch.where(self.moments.weight > 0, loss, 0.0)

    def observe(self, following: ObservationTensor) -> None:
        """Count what is to be predicted [R, B, ...] into the running moments."""
        values = _numbers(self.spec, self.layout, following).flatten(0, 1)
        self.moments.update(values, float(len(values)))


class MapPrediction(nn.Module):
    """Predicted classes of the cells of a map.

    Args:
        spec: the map.
        inputs: D, width of the core's output.
        hidden: H, units of the hidden layer.
    """

    def __init__(self, spec: MapSpec, inputs: int, hidden: int) -> None:
        super().__init__()
        self.spec = spec
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, spec.rows * spec.columns * CELL), nn.ReLU()
        )
        self.classes = nn.Linear(CELL, sum(spec.classes))

    def forward(self, outputs: Tensor, maps: Tensor) -> Tensor:
        """Outputs of the core [T, B, D] and maps [T, B, rows, columns, layers] of the same steps -> the loss [T, B].

        loss = mean over layers of the mean over seen cells i of - log softmax(W_3 f_i + b_3)[seen_i - 1],
        with f = relu(W_2 relu(W_1 y + b_1) + b_2), CELL features per cell. A layer without seen cells adds 0.
        """
        cells = self.layers(outputs).unflatten(-1, (self.spec.rows * self.spec.columns, CELL))
        losses: list[Tensor] = []
        for layer, scores in enumerate(self.classes(cells).split(self.spec.classes, -1)):
            kind = maps[..., layer].flatten(2).long()
            observed = kind > 0
            chosen = torch.log_softmax(scores, -1).gather(-1, (kind - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
            losses.append(-torch.where(observed, chosen, 0.0).sum(-1) / observed.sum(-1).clamp(min=1))
        return torch.stack(losses).mean(0)


def _zeros(spec: ObservationSpec) -> ObservationTensor:
    """An observation [1, 1, ...] of zeros."""
    if isinstance(spec, dict):
        return {key: _zeros(part) for key, part in spec.items()}
    return torch.zeros(1, 1, *spec.shape)


def _numbers(spec: ObservationSpec, layout: str, observation: ObservationTensor) -> Tensor:
    """The numbers [T, B, S] of observations [T, B, ...]; parts of a dict in the order of sorted keys."""
    if isinstance(spec, dict):
        return torch.cat([_numbers(spec[key], layout, observation[key]) for key in sorted(spec)], -1)
    x = observation.float()
    flat = x.reshape(*x.shape[:2], -1)
    return flat if flat.shape[-1] <= MOST_NUMBERS else _averages(spec, layout, x).flatten(2)


def _averages(spec: ArraySpec, layout: str, x: Tensor) -> Tensor:
    """Pictures [T, B, ...] -> [T, B, channels, 20, 20], or fewer rows or columns where they have fewer.

    Arrays of other shapes, and pictures that do not show which axis holds the channels, -> [T, B, 4096].
    """
    try:
        first = channels_first(spec.shape, layout) if len(spec.shape) == 3 else None
    except ValueError:
        first = None
    if first is None:
        return functional.adaptive_avg_pool1d(x.flatten(2), MOST_NUMBERS)
    last = with_channels_last(x.flatten(0, 1), first)
    parts = min(last.shape[1], PARTS), min(last.shape[2], PARTS)
    return functional.adaptive_avg_pool2d(last.permute(0, 3, 1, 2), parts).unflatten(0, x.shape[:2])
