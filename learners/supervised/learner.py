"""Supervised learning of a task with a memory core: one update per batch, and scores on new data."""

import math
import operator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...agents.cores.core import CoreState, map_state, reset_state, state_leaves
from ...envs.tasks.task import Task
from ..optimizers import clip_global_norm, make_optimizer
from .model import SequenceModel, Sequences, SupervisedConfig, to_tensors

CONFIDENT = 1.959964  # 95% of a normal distribution lies within this many standard deviations of the mean


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
    mistakes = torch.zeros(query.shape, dtype=torch.bool, device=query.device)
    mistakes[query] = (counts & ~right).any(-1)
    answered = query.any(0)
    return Score(
        int(right.sum()),
        int(counts.sum()),
        int((answered & ~mistakes.any(0)).sum()),
        int(answered.sum()),
        float(torch.where(counts, nats, 0.0).double().sum()),
    )


class SupervisedLearner:
    """A network and its optimizer; with `stream`, the core's state continues across batches."""

    def __init__(self, model: SequenceModel, config: SupervisedConfig, stream: bool) -> None:
        self.model, self.config, self.stream = model, config, stream
        self.device = next(model.parameters()).device
        self.optimizer = make_optimizer(
            "adam", model.parameters(), lr=config.lr, eps=config.eps, decay=0.0, momentum=0.0, betas=(0.9, 0.999)
        )
        self.updates, self.skipped = 0, 0  # Skipped: updates whose loss or gradient was not finite
        self._state: CoreState | None = None

    def step(self, batch: Sequences) -> dict[str, float]:
        """Run one update from a batch and return its metrics."""
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
        """Compute the mean cross entropy of the answers and the core's own loss."""
        query = (batch.targets >= 0).any(-1)
        state = self.model.core.initial_state(query.shape[1]) if self._state is None else self._state
        logits, state, auxiliary = self.model(batch.inputs, batch.reset, query, state, self.config.bptt_length or None)
        if self.stream:
            self._state = self._finite(map_state(Tensor.detach, state))
        targets = batch.targets[query]
        entropy = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
        entropy = entropy / (targets >= 0).sum().clamp(min=1)
        extra = entropy.new_zeros(()) if auxiliary is None else self.config.auxiliary_cost * auxiliary.mean()
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
            form = self.model.core.initial_state(1)
            self._state = map_state(lambda _: next(leaves).to(self.device), form)


@torch.no_grad()
def examine(model: SequenceModel, task: Task, batches: int) -> Score:
    """Score a model on `batches` batches of a task; a stream begins with the initial state."""
    device = next(model.parameters()).device
    total = Score()
    state = None
    for _ in range(batches):
        batch = to_tensors(task.next(), device)
        if state is None or not task.stream:
            state = model.core.initial_state(task.num_sequences)
        query = (batch.targets >= 0).any(-1)
        logits, state, _ = model(batch.inputs, batch.reset, query, state, None)
        total = total.plus(score(logits, batch.targets))
    return total
