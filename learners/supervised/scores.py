"""Scores of a task: share of correct answers, with a confidence interval, and loss."""

import math
import operator
from typing import NamedTuple

import torch
from torch import Tensor

CONFIDENT = 1.959964  # 95% of a normal distribution lies within this many standard deviations of the mean


class Score(NamedTuple):
    """Counts over answers; scores of several batches can be added."""

    right: int = 0  # Correct answers, counted in each of K groups
    answers: int = 0
    perfect: int = 0  # Sequences without a mistake; in a stream, each batch of a sequence counts as one
    sequences: int = 0  # Sequences with at least one query
    nats: float = 0.0  # Sum of -log p(correct answer)

    def plus(self, other: "Score") -> "Score":
        """Return the sum of two scores."""
        return Score(*map(operator.add, self, other))

    @property
    def accuracy(self) -> float:
        """Share of correct answers; nan without queries."""
        return self.right / self.answers if self.answers else math.nan

    @property
    def perfect_share(self) -> float:
        """Share of sequences without a mistake."""
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
    """Score answers.

    Args:
        logits: [N, K, C] at the steps with a query, in their order.
        targets: int64 [T, B, K], negative where there is no query.
    """
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
