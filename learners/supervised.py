"""Supervised learning of sequences with the agents' memory cores: measures memory capacity, without acting.

The network maps symbols or features -> memory core -> class logits. Shapes: T steps, B sequences, N steps with a query,
K answers per query, C classes.
"""

import math
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..agents.cores import make_core
from ..agents.cores.core import CoreState, map_state, reset_state, state_leaves
from ..base.errors import above
from ..base.settings import Settings, setting
from ..envs.tasks.task import Batch, Task
from .optimizers import Adam, clip_global_norm

MOST_ONE_HOT = 64  # Largest number of symbols for one-hot encoding; more are embedded
CONFIDENT = 1.959964  # 95% of a normal distribution lies within this many standard deviations of the mean


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
        self, batch: Sequences, state: CoreState, bptt_length: int | None = None
    ) -> tuple[Tensor, CoreState, Tensor | None]:
        """Return logits [N, K, C], the last state, and the core's own loss [T, B] or None."""
        outputs, state, loss = self.core.unroll(self.shown(batch.inputs), batch.reset, state, bptt_length)
        return self.head(outputs[(batch.targets >= 0).any(-1)]).unflatten(-1, self.shape), state, loss

    def shown(self, inputs: Tensor) -> Tensor:
        """Inputs of the core [T, B, D]; a blank step is all zeros."""
        if not self.symbols:
            return inputs
        symbols = inputs.clamp(min=0)
        features = self.embedding(symbols) if self.embedding else F.one_hot(symbols, self.num_inputs).float()
        return torch.where((inputs < 0).unsqueeze(-1), 0.0, features)


class Score(NamedTuple):
    """Counts over answers; scores of several batches can be added."""

    right: int = 0  # Correct answers, counted in each of K groups
    answers: int = 0
    perfect: int = 0  # Sequences without a mistake; in a stream, each batch of a sequence counts as one
    sequences: int = 0  # Sequences with at least one query
    nats: float = 0.0  # Sum of -log p(correct answer)

    def plus(self, other: "Score") -> "Score":
        sums: Any = map(operator.add, self, other)
        return Score(*sums)

    @property
    def accuracy(self) -> float:
        """Share of correct answers; nan without queries."""
        return self.right / self.answers if self.answers else math.nan

    @property
    def perfect_share(self) -> float:
        return self.perfect / self.sequences if self.sequences else math.nan

    def plain(self) -> dict[str, float]:
        """The score for result.json, with Wilson's 95% interval of the accuracy. Answers within a sequence depend on
        each other, so the interval counts only as many independent answers as there are sequences."""
        low, high = wilson(self.accuracy, min(self.answers, self.sequences))
        nats = self.nats / self.answers if self.answers else math.nan
        shares = {"accuracy": self.accuracy, "low": low, "high": high, "perfect": self.perfect_share, "nats": nats}
        return shares | {"asked": self.answers, "sequences": self.sequences}


def wilson(share: float, count: int) -> tuple[float, float]:
    """Interval that contains the true share at 95% confidence (Wilson 1927, equation 4); 0..1 without observations."""
    if count == 0:
        return 0.0, 1.0
    squared = CONFIDENT**2 / count
    center = (share + squared / 2) / (1 + squared)
    half = CONFIDENT / (1 + squared) * math.sqrt(share * (1 - share) / count + squared / (4 * count))
    return max(0.0, center - half), min(1.0, center + half)


def score(logits: Tensor, targets: Tensor) -> Score:
    """Score logits [N, K, C] at the steps with a query, in order; targets int64 [T, B, K] are negative elsewhere."""
    query = (targets >= 0).any(-1)
    expected, counts = targets[query], targets[query] >= 0
    right = (logits.argmax(-1) == expected) & counts
    nats = -logits.log_softmax(-1).gather(-1, expected.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    mistakes = torch.zeros_like(query)
    mistakes[query] = (counts & ~right).any(-1)
    answered = query.any(0)
    perfect, total = (answered & ~mistakes.any(0)).sum(), torch.where(counts, nats, 0.0).double().sum()
    return Score(int(right.sum()), int(counts.sum()), int(perfect), int(answered.sum()), float(total))


class SupervisedLearner:
    """A network and its optimizer; with `stream`, the core's state continues across batches."""

    def __init__(self, model: SequenceModel, config: SupervisedConfig, stream: bool) -> None:
        self.model, self.config, self.stream = model, config, stream
        self.device = next(model.parameters()).device
        self.optimizer = Adam(model.parameters(), lr=config.lr, eps=config.eps, fused=True)
        self.updates, self.skipped = 0, 0  # Skipped: updates whose loss or gradient was not finite
        self._state: CoreState | None = None

    def step(self, batch: Sequences) -> dict[str, float]:
        total, metrics = self._loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        if total.requires_grad:
            total.backward()
            norm = float(clip_global_norm(self.model.parameters(), self.config.max_grad_norm or None))
            if math.isfinite(norm) and math.isfinite(metrics["loss/total"]):
                self.optimizer.step()
            else:
                self.skipped += 1
            metrics["learner/grad_norm"] = norm
        self.updates += 1
        return metrics | {"learner/lr": self.config.lr, "learner/skipped": float(self.skipped)}

    def _loss(self, batch: Sequences) -> tuple[Tensor, dict[str, float]]:
        config, query = self.config, (batch.targets >= 0).any(-1)
        state = self.model.core.initial_state(query.shape[1]) if self._state is None else self._state
        logits, state, auxiliary = self.model(batch, state, config.bptt_length or None)
        if self.stream:
            self._state = self._finite(map_state(Tensor.detach, state))
        targets = batch.targets[query]
        entropy = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
        entropy = entropy / (targets >= 0).sum().clamp(min=1)
        extra = entropy.new_zeros(()) if auxiliary is None else config.auxiliary_cost * auxiliary.mean()
        total, result = entropy + extra, score(logits.detach(), batch.targets)
        metrics = {"loss/cross_entropy": entropy.item(), "loss/auxiliary": extra.item(), "loss/total": total.item()}
        if result.answers:
            metrics |= {"probe/accuracy": result.accuracy, "probe/perfect": result.perfect_share}
        return total, metrics

    def _finite(self, state: CoreState) -> CoreState:
        """Reset the state of streams with non-finite values, which would otherwise stay non-finite."""
        finite = [leaf.isfinite().reshape(len(leaf), -1).all(1) for leaf in state_leaves(state)]
        if all(x.all() for x in finite):
            return state
        bad = ~torch.stack(finite).all(0)
        return reset_state(state, map_state(Tensor.detach, self.model.core.initial_state(len(bad))), bad)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "skipped": self.skipped,
            "state": None if self._state is None else state_leaves(self._state),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.updates, self.skipped = saved["updates"], saved["skipped"]
        if saved["state"] is not None:
            leaves = iter(saved["state"])
            self._state = map_state(lambda _: next(leaves).to(self.device), self.model.core.initial_state(1))


@torch.no_grad()
def examine(model: SequenceModel, task: Task, batches: int) -> Score:
    """Score a model on `batches` batches of a task; a stream begins with the initial state."""
    device, total, state = next(model.parameters()).device, Score(), None
    for _ in range(batches):
        batch = to_tensors(task.next(), device)
        if state is None or not task.stream:
            state = model.core.initial_state(task.num_sequences)
        logits, state, _ = model(batch, state)
        total = total.plus(score(logits, batch.targets))
    return total
