"""Minimal memory task: report at the end which of two cues was shown at the beginning."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cores.core import Core

BATCH = 64  # Sequences per update
NOISE = 0.3  # Standard deviation of the distraction
SOLVED = 0.95  # Fraction of correct answers required for recall; guessing gives 0.5.


def cue_recall(batch_size: int, delay: int, input_size: int) -> tuple[Tensor, Tensor]:
    """Sequences [delay + 2, batch_size, input_size] and their first cues, float32 [batch_size] of 0 and 1. Feature 0 is
    the cue (-1 or 1) at the first step, feature 1 is 1 at the last step, the query; the rest is noise at every step."""
    cue = torch.randint(2, (batch_size,)).float()
    inputs = NOISE * torch.randn(delay + 2, batch_size, input_size)
    inputs[:, :, :2] = 0
    inputs[0, :, 0] = 2 * cue - 1
    inputs[-1, :, 1] = 1
    return inputs, cue


def recall_accuracy(core: Core, input_size: int, delay: int, updates: int, learning_rate: float) -> tuple[float, int]:
    """Train `core` (its weights change) to recall a cue over `delay` steps; return accuracy and number of updates.
    Training stops when the accuracy on a new batch is high enough. Guessing gives 0.5."""
    head = nn.Linear(core.output_size, 1)
    optimizer = torch.optim.Adam([*core.parameters(), *head.parameters()], learning_rate)
    accuracy = 0.0
    for update in range(1, updates + 1):
        logits, cue = _answers(core, head, delay, input_size)
        accuracy = ((logits > 0) == cue.bool()).float().mean().item()
        if update % 10 == 0 and accuracy >= SOLVED:
            with torch.no_grad():
                trials = [_answers(core, head, delay, input_size) for _ in range(4)]
            accuracy = sum(((out > 0) == right.bool()).float().mean().item() for out, right in trials) / len(trials)
            if accuracy >= SOLVED:
                return accuracy, update
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logits, cue).backward()
        nn.utils.clip_grad_norm_(core.parameters(), 1.0)
        optimizer.step()
    return accuracy, updates


def _answers(core: Core, head: nn.Linear, delay: int, input_size: int) -> tuple[Tensor, Tensor]:
    """Logits and cues [BATCH] of a new batch."""
    inputs, cue = cue_recall(BATCH, delay, input_size)
    reset = torch.zeros(inputs.shape[:2], dtype=torch.bool)
    outputs = core.unroll(inputs, reset, core.initial_state(BATCH))[0]
    return head(outputs[-1]).squeeze(-1), cue
