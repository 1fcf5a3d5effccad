"""Compiled policy and value heads for acting on a CPU."""

import numpy as np
import torch
from torch import Tensor, nn

from ..base.compiled import compiled
from .cores.core import altered
from .cores.fast.blas import gemm, multiply
from .cores.fast.elementwise import Array, add
from .cores.fast.routes import arrays, suits
from .normalization import RescaledHead
from .specs import ActionSpec, ChoiceSpec

NO_MASK = np.empty((0, 0), np.bool_)


def prepare_heads(spec: ActionSpec, policy: nn.Linear, value: nn.Linear) -> "Heads | None":
    """Prepare both heads with their current weights; return None unless compiled code is equivalent to the modules."""
    single = isinstance(spec, ChoiceSpec) and len(spec.choices) == 1
    if not single or not suits(policy.weight) or altered(policy) or altered(value):
        return None
    row, bias = value.weight, value.bias
    if isinstance(value, RescaledHead):
        row, bias = row * value.moments.deviation, bias * value.moments.deviation + value.moments.mean
    return Heads(torch.cat([policy.weight, row]), torch.cat([policy.bias, bias]))


class Heads:
    """Logits, values and actions of a single choice from outputs of a core, in one call, without gradients.

    Args:
        weight: [A + 1, H], A rows for the logits, then one for the value.
        bias: [A + 1].
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = arrays(weight, bias)
        self.options = len(bias) - 1

    def __call__(self, outputs: Tensor, mask: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """outputs [B, H], valid options bool [B, A], exponential noise [B, A] -> logits [B, A], values, actions [B]."""
        batch = len(outputs)
        (x, random), both = arrays(outputs, noise), outputs.new_empty(batch, self.options + 1).numpy()
        logits, value = torch.empty_like(noise), outputs.new_empty(batch)
        action = torch.empty(batch, dtype=torch.int64)
        valid = NO_MASK if mask is None else mask.numpy()
        results = logits.numpy(), value.numpy(), action.numpy()
        _choose(gemm(outputs.dtype), x, self.weight, self.bias, valid, random, both, *results)
        return logits, value, action


@compiled()
def _choose(
    gemm: int,
    x: Array,
    weight: Array,
    bias: Array,
    mask: Array,
    noise: Array,
    both: Array,
    logits: Array,
    value: Array,
    action: Array,
) -> None:
    multiply(gemm, x, weight, True, both)
    options = noise.shape[1]
    for b in range(len(both)):
        add(both[b], bias)
        value[b] = both[b, options]
        highest = -np.inf
        action[b] = 0
        for k in range(options):
            logits[b, k] = both[b, k] if len(mask) == 0 or mask[b, k] else -np.inf
            score = logits[b, k] - np.log(noise[b, k])
            if score > highest:
                highest = score
                action[b] = k
