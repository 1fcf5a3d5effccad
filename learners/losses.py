"""The terms of an actor-critic loss: pure functions over [T, B] with a mask of valid steps.

Two reductions:

    "mean"   over the valid steps: the size of gradients does not depend on T, B or how often episodes end
    "sum"    over the valid steps: as in scalable_agent, whose learning rate and epsilon go with it

Masking is by selection, not by multiplication (0 * nan is nan), and comes before any product that a gradient goes
through: targets, advantages and values at an invalid step may be anything.
"""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

Reduction: TypeAlias = Literal["mean", "sum"]


def policy_terms(log_probabilities: Tensor, advantages: Tensor, valid: Tensor) -> Tensor:
    """- log pi(a_t | x_t) A_t: its gradient is the policy gradient (Williams 1992; IMPALA section 4.2). [T, B]

    Args:
        log_probabilities: of the actions taken, float [T, B].
        advantages: float [T, B]; taken as constants.
        valid: bool [T, B].
    """
    return -log_probabilities * torch.where(valid, advantages.detach(), 0.0)


def value_terms(values: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """0.5 (v_t - V_t)^2 (IMPALA section 4.2; the half is scalable_agent's). [T, B]

    Args:
        values: float [T, B].
        targets: float [T, B]; taken as constants.
        valid: bool [T, B].
    """
    return 0.5 * torch.where(valid, targets.detach() - values, 0.0).square()


def reduce(terms: Tensor, valid: Tensor, reduction: Reduction) -> Tensor:
    """Sum or mean of terms [T, B] where valid (bool [T, B]) is set; 0 where no step is valid.

    Raises ValueError for terms of another shape than the mask, which would broadcast, and for an unknown reduction.
    """
    if terms.shape != valid.shape:
        raise ValueError(f"terms have shape {tuple(terms.shape)}; expected {tuple(valid.shape)}, the shape of valid")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}; allowed: 'mean', 'sum'")
    total = torch.where(valid, terms, 0.0).sum()
    return total if reduction == "sum" else total / valid.sum().clamp(min=1)
