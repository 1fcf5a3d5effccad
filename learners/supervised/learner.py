"""Supervised learning of a task with a memory core: one update per batch, and tests on new data."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...agents.cores.core import CoreState, map_state, state_leaves
from ...envs.tasks.task import Task
from ..optimizers import clip_global_norm, make_optimizer, set_hyperparameters
from .config import SupervisedConfig
from .model import SequenceModel, Sequences, to_tensors
from .scores import Score, score


class SupervisedLearner:
    """A network and its optimizer; with `stream`, the core's state continues across batches."""

    def __init__(self, model: SequenceModel, config: SupervisedConfig, stream: bool) -> None:
        self.model, self.config, self.stream = model, config, stream
        self.device = next(model.parameters()).device
        self.optimizer = make_optimizer(
            "adam", model.parameters(), lr=config.lr, eps=config.eps, decay=0.0, momentum=0.0, betas=(0.9, 0.999)
        )
        self.updates = 0
        self.skipped = 0  # Number of updates skipped because the loss or its gradient was not finite
        self._state: CoreState | None = None

    def step(self, batch: Sequences) -> dict[str, float]:
        """Run one update from a batch and return its metrics."""
        set_hyperparameters(self.optimizer, {"lr": self.config.lr})
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
            self._state = map_state(Tensor.detach, state)
        targets = batch.targets[query]
        entropy = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
        entropy = entropy / (targets >= 0).sum().clamp(min=1)
        extra = entropy.new_zeros(()) if auxiliary is None else self.config.auxiliary_cost * auxiliary.mean()
        metrics = {"loss/cross_entropy": entropy.item(), "loss/auxiliary": extra.item()}
        with torch.no_grad():
            result = score(logits, batch.targets)
        if result.answers:
            metrics |= {"probe/accuracy": result.accuracy, "probe/perfect": result.perfect_share}
        return entropy + extra, metrics | {"loss/total": (entropy + extra).item()}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "skipped": self.skipped,
            "state": None if self._state is None else state_leaves(self._state),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
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
