"""The network of a supervised task: symbols or features -> memory core -> class logits; and its configuration."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...agents.cores import make_core
from ...agents.cores.core import CoreState
from ...base.messages import above
from ...base.settings import Settings, setting
from ...envs.tasks.task import Batch, Task

MOST_ONE_HOT = 64  # Largest number of symbols for one-hot encoding; more are embedded


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig(Settings):
    """Common settings: Adam, clipping by the global norm, cross entropy."""

    batch_size: int = setting(64, (1, None))
    """Sequences per update."""
    lr: float = setting(1e-3, above(0))
    """Adam's learning rate, above 0."""
    eps: float = setting(1e-8, above(0))
    """Adam's epsilon, above 0."""
    max_grad_norm: float = setting(1.0, (0, None))
    """Gradients are scaled down to at most this global norm; 0 disables clipping."""
    bptt_length: int = setting(0, (0, None))
    """Gradients through time are truncated after this number of steps inside a batch; 0 truncates only at its start."""
    auxiliary_cost: float = setting(1.0, (0, None))
    """Weight of the core's own loss (MNM's meta loss), at least 0."""
    embedding_size: int = setting(0, (0, None))
    """Number of features per embedded symbol; 0 is one-hot for up to 64 symbols, 64 features for more."""
    head_layers: int = setting(0, (0, 1000))
    """Number of hidden layers (ReLU) between core and output, at most 1000."""
    head_size: int = setting(256, (1, None))
    """Width of the hidden layers."""


class Sequences(NamedTuple):
    """A batch of a task as tensors."""

    inputs: Tensor  # float32 [T, B, D] or int64 [T, B]
    targets: Tensor  # int64 [T, B, K], negative where there is no query
    reset: Tensor  # bool [T, B]


def to_tensors(batch: Batch, device: torch.device) -> Sequences:
    return Sequences(*(torch.from_numpy(array).to(device) for array in batch))


class SequenceModel(nn.Module):
    """Classifier with K groups of classes at every step with a query of a task."""

    def __init__(self, task: Task, core: str, core_args: dict[str, Any], config: SupervisedConfig) -> None:
        super().__init__()
        self.symbols, self.num_inputs, self.shape = task.symbols, task.inputs, (task.groups, task.classes)
        width = config.embedding_size or (0 if task.inputs <= MOST_ONE_HOT else MOST_ONE_HOT)
        self.embedding = nn.Embedding(task.inputs, width) if task.symbols and width else None
        self.core = make_core(core, width if self.embedding else task.inputs, **core_args)
        layers: list[nn.Module] = []
        size = self.core.output_size
        for _ in range(config.head_layers):
            layers += [nn.Linear(size, config.head_size), nn.ReLU()]
            size = config.head_size
        self.head = nn.Sequential(*layers, nn.Linear(size, task.groups * task.classes))

    def forward(
        self, inputs: Tensor, reset: Tensor, query: Tensor, state: CoreState, bptt_length: int | None
    ) -> tuple[Tensor, CoreState, Tensor | None]:
        """Return logits [N, K, C] of N steps with a query, the last state, and the auxiliary loss [T, B] or None.
        Inputs are float32 [T, B, D] or symbols int64 [T, B]; `reset` and `query` are bool [T, B]."""
        outputs, state, loss = self.core.unroll(self.shown(inputs), reset, state, bptt_length)
        return self.head(outputs[query]).unflatten(-1, self.shape), state, loss

    def shown(self, inputs: Tensor) -> Tensor:
        """Inputs of the core [T, B, D]; a blank step is all zeros."""
        if not self.symbols:
            return inputs
        blank = (inputs < 0).unsqueeze(-1)
        symbols = inputs.clamp(min=0)
        features = self.embedding(symbols) if self.embedding else F.one_hot(symbols, self.num_inputs).float()
        return torch.where(blank, 0.0, features)
