"""Auxiliary loss for the memory: prediction of the next observation or reward from the core's output and the action.

Without it, the core learns what to store only from rewards. Sources: Oh et al. 2015, "Action-conditional video
prediction using deep networks in Atari games" (prediction from a recurrent state and the action); Wayne et al. 2018,
"Unsupervised predictive memory in a goal-directed agent" (predictions that train a memory); Jaderberg et al. 2017,
"Reinforcement learning with unsupervised auxiliary tasks" (predicted rewards); Zhang et al. 2017, "Neural SLAM" (a map
of the cells observed so far in the episode, which contains no privileged information).
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .images import channels_first
from .normalization import Moments
from .specs import ArraySpec, ObservationSpec, with_channels_last
from .values import ObservationTensor

MOST_VALUES = 4096  # Size of the largest array predicted in full; larger arrays are predicted as averages over parts
PARTS = 20  # Rows and columns of averages of an image
REWARD = ArraySpec((1,))  # Spec of the reward as a prediction target
CELL = 16  # Features of each cell of the map, from which one layer shared by all cells predicts its classes


class MapSpec(NamedTuple):
    """Map [rows, columns, layers] of observed cells: 0 if not observed, else 1 + the cell's class in the layer."""

    rows: int
    columns: int
    classes: tuple[int, ...]  # Number of classes of each layer


class Prediction(nn.Module):
    """Prediction of the S values of the next observation, or of the reward, with one hidden layer of H units. Targets
    of an image of more than 4,096 values are 20 x 20 averages of each channel; of other arrays, 4,096 averages."""

    def __init__(
        self, spec: ObservationSpec, inputs: int, hidden: int, layout: str = "auto", memory: float = 1e7
    ) -> None:
        super().__init__()
        self.spec, self.layout = spec, layout
        with torch.device("cpu"):  # even for the meta device
            size = _targets(spec, layout, _zeros(spec)).shape[-1]
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, size))
        self.moments = Moments(size, memory)

    def forward(self, inputs: Tensor, following: ObservationTensor) -> Tensor:
        """Inputs [T, B, D] and following targets [T, B, ...] -> loss [T, B].

        p = W_2 relu(W_1 inputs + b_1) + b_2,    loss = 1/2 mean_S (p - (x - mean) / deviation)^2

        where x are the S unscaled values, with their running mean and deviation; 0 before the first `observe`.
        """
        values = self.moments(_targets(self.spec, self.layout, following))
        loss = 0.5 * (self.layers(inputs) - values).square().mean(-1)
        return torch.where(self.moments.weight > 0, loss, 0.0)

    def observe(self, following: ObservationTensor) -> None:
        values = _targets(self.spec, self.layout, following).flatten(0, 1)
        self.moments.update(values, float(len(values)))


class MapPrediction(nn.Module):
    """Prediction of the classes of the cells of a map, with one hidden layer of H units."""

    def __init__(self, spec: MapSpec, inputs: int, hidden: int) -> None:
        super().__init__()
        self.spec = spec
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, spec.rows * spec.columns * CELL), nn.ReLU()
        )
        self.classes = nn.Linear(CELL, sum(spec.classes))

    def forward(self, outputs: Tensor, maps: Tensor) -> Tensor:
        """Outputs of the core [T, B, D] and maps [T, B, rows, columns, layers] of the same steps -> loss [T, B].
        loss = mean over layers of the mean over observed cells i of - log softmax(W_3 f_i + b_3)[map_i - 1], with f =
        relu(W_2 relu(W_1 y + b_1) + b_2), CELL features per cell. A layer without observed cells adds 0."""
        cells = self.layers(outputs).unflatten(-1, (self.spec.rows * self.spec.columns, CELL))
        losses: list[Tensor] = []
        for layer, scores in enumerate(self.classes(cells).split(self.spec.classes, -1)):
            kind = maps[..., layer].flatten(2).long()
            observed = kind > 0
            chosen = torch.log_softmax(scores, -1).gather(-1, (kind - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
            losses.append(-torch.where(observed, chosen, 0.0).sum(-1) / observed.sum(-1).clamp(min=1))
        return torch.stack(losses).mean(0)


def _zeros(spec: ObservationSpec) -> ObservationTensor:
    if isinstance(spec, dict):
        return {key: _zeros(part) for key, part in spec.items()}
    return torch.zeros(1, 1, *spec.shape)


def _targets(spec: ObservationSpec, layout: str, observation: ObservationTensor) -> Tensor:
    """Observations [T, B, ...] -> target values [T, B, S]; parts of a dict are in the order of sorted keys."""
    if isinstance(spec, dict):
        return torch.cat([_targets(spec[key], layout, observation[key]) for key in sorted(spec)], -1)
    x = observation.float()
    flat = x.reshape(*x.shape[:2], -1)
    return flat if flat.shape[-1] <= MOST_VALUES else _averages(spec, layout, x).flatten(2)


def _averages(spec: ArraySpec, layout: str, x: Tensor) -> Tensor:
    """Images [T, B, ...] -> [T, B, channels, 20, 20], with fewer rows or columns if the images have fewer. Arrays of
    other shapes, and images with an ambiguous channel axis, -> [T, B, 4096]."""
    try:
        first = channels_first(spec.shape, layout) if len(spec.shape) == 3 else None
    except ValueError:
        first = None
    if first is None:
        return functional.adaptive_avg_pool1d(x.flatten(2), MOST_VALUES)
    last = with_channels_last(x.flatten(0, 1), first)
    parts = min(last.shape[1], PARTS), min(last.shape[2], PARTS)
    return functional.adaptive_avg_pool2d(last.permute(0, 3, 1, 2), parts).unflatten(0, x.shape[:2])
