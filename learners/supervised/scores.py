"""How well a task is answered: the share of right answers, with an interval, and the loss."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

CONFIDENT = 1.959964
"""Standard deviations on either side of the mean that hold 95% of a normal distribution."""


class Score(NamedTuple):
    """Counts over answers; scores of several batches add up."""

    right: int = 0
    """Right answers, each of K groups counted."""
    asked: int = 0
    perfect: int = 0
    """Sequences without a mistake; of a stream, batches of one sequence."""
    sequences: int = 0
    """Sequences that were asked anything."""
    nats: float = 0.0
    """Sum of -log p(right answer)."""

    def plus(self, other: "Score") -> "Score":
        """Of both together."""
        return Score(
            self.right + other.right,
            self.asked + other.asked,
            self.perfect + other.perfect,
            self.sequences + other.sequences,
            self.nats + other.nats,
        )

    @property
    def accuracy(self) -> float:
        """Share of right answers, nan without any question."""
        return self.right / self.asked if self.asked else math.nan

    @property
    def perfect_share(self) -> float:
        """Share of sequences without a mistake."""
        return self.perfect / self.sequences if self.sequences else math.nan

    @property
    def mean_nats(self) -> float:
        """Mean -log p(right answer): e to its power is the perplexity, over log 2 it is bits per answer."""
        return self.nats / self.asked if self.asked else math.nan

    @property
    def perplexity(self) -> float:
        """e to the mean -log p(right answer)."""
        return math.exp(min(self.mean_nats, 700.0)) if self.asked else math.nan

    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval of the accuracy.

        Answers of one sequence depend on each other, so it is that of as many independent answers as there are
        sequences: wide rather than narrow.
        """
        return wilson(self.accuracy, min(self.asked, self.sequences))


def wilson(share: float, count: int) -> tuple[float, float]:
    """The interval that holds the true share with 95% (Wilson 1927, equation 4); all of 0..1 for no observation."""
    if count == 0:
        return 0.0, 1.0
    squared = CONFIDENT**2 / count
    center = (share + squared / 2) / (1 + squared)
    half = CONFIDENT / (1 + squared) * math.sqrt(share * (1 - share) / count + squared / (4 * count))
    return max(0.0, center - half), min(1.0, center + half)


def score(logits: Tensor, targets: Tensor, scored: Tensor) -> Score:
    """Count answers.

    Args:
        logits: [N, K, C] at the steps that ask, in their order.
        targets: int64 [T, B, K], negative where nothing is asked.
        scored: bool [T, B]: the steps that count.
    """
    asked = (targets >= 0).any(-1)
    wanted, counts = targets[asked], scored[asked].unsqueeze(-1) & (targets[asked] >= 0)
    right = (logits.argmax(-1) == wanted) & counts
    nats = -logits.log_softmax(-1).gather(-1, wanted.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    mistakes = torch.zeros(asked.shape, dtype=torch.bool, device=asked.device)
    mistakes[asked] = (counts & ~right).any(-1)
    answered = (scored & asked).any(0)
    return Score(
        int(right.sum()),
        int(counts.sum()),
        int((answered & ~mistakes.any(0)).sum()),
        int(answered.sum()),
        float(torch.where(counts, nats, 0.0).double().sum()),
    )
