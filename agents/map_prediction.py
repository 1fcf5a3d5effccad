"""An auxiliary loss for the memory: a map of what was seen so far in this episode is predicted from the core's output.

No privileged information: the target is the agent's own past, so that what a memory has to store is taught at every
step (Zhang et al. 2017, "Neural SLAM"; Wayne et al. 2018, "Unsupervised predictive memory in a goal-directed agent").
"""

import torch
from torch import Tensor, nn

from .specs import MapSpec

CELL = 16
"""Features of each cell of the map, from which one layer shared by all cells predicts what it shows."""


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

    def forward(self, outputs: Tensor, seen: Tensor) -> Tensor:
        """Outputs of the core [T, B, D] and maps [T, B, rows, columns, layers] of the same steps -> the loss [T, B].

        loss = mean over layers of the mean over seen cells i of - log softmax(W_3 f_i + b_3)[seen_i - 1],
        with f = relu(W_2 relu(W_1 y + b_1) + b_2), CELL features per cell. A layer without seen cells adds 0.
        """
        cells = self.layers(outputs).unflatten(-1, (self.spec.rows * self.spec.columns, CELL))
        losses: list[Tensor] = []
        for layer, scores in enumerate(self.classes(cells).split(self.spec.classes, -1)):
            kind = seen[..., layer].flatten(2).long()
            known = kind > 0
            chosen = torch.log_softmax(scores, -1).gather(-1, (kind - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
            losses.append(-torch.where(known, chosen, 0.0).sum(-1) / known.sum(-1).clamp(min=1))
        return torch.stack(losses).mean(0)
