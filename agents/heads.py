"""Inputs of the value head with privileged information, and compiled policy and value heads for acting on a CPU."""

import numpy as np
import torch
from torch import Tensor, nn

from ..base.compiled import compiled
from .cores.core import altered
from .cores.fast.blas import gemm, multiply
from .cores.fast.elementwise import Array, add
from .cores.fast.routes import arrays, suits
from .normalization import Moments, RescaledHead
from .specs import ActionSpec, ChoiceSpec

HIDDEN = 64  # Units that combine the core's output with privileged information


class PrivilegedCritic(nn.Module):
    """Inputs of the value head: the core's output y, and a hidden layer over y and P privileged values p.

        [y, relu(W [y, (p - mean) / deviation] + b)]

    The critic is unbiased, since it also reads the history through y (Baisero and Amato 2022, "Unbiased asymmetric
    reinforcement learning under partial observability"; Pinto et al. 2018, "Asymmetric actor critic for image-based
    robot learning").
    """

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.moments = Moments(size, memory=1e7)
        self.hidden = nn.Linear(inputs + size, HIDDEN)
        self.output_size = inputs + HIDDEN

    def forward(self, outputs: Tensor, privileged: Tensor | None) -> Tensor:
        """[..., D] and [..., P] -> [..., D + HIDDEN]; without information, as in evaluation, its mean is used."""
        if privileged is None:
            information = outputs.new_zeros(*outputs.shape[:-1], len(self.moments.mean))
        else:
            information = self.moments(privileged.to(outputs.dtype))
        return torch.cat([outputs, torch.relu(self.hidden(torch.cat([outputs, information], -1)))], -1)


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
    """Logits, values and actions of a single choice from outputs of a core, in one call, without gradients. `weight`
    [A + 1, H] and `bias` [A + 1] have A rows for the logits, then one for the value."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = arrays(weight, bias)
        self.options = len(bias) - 1

    def __call__(self, outputs: Tensor, mask: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """outputs [B, H], valid options bool [B, A], exponential noise [B, A] -> logits [B, A], values, actions [B]."""
        batch = len(outputs)
        logits, value, action = torch.empty_like(noise), outputs.new_empty(batch), torch.empty(batch, dtype=torch.int64)
        both = outputs.new_empty(batch, self.options + 1)
        valid = np.empty((0, 0), np.bool_) if mask is None else mask.numpy()
        x, random, *results = arrays(outputs, noise, both, logits, value, action)
        _choose(gemm(outputs.dtype), x, self.weight, self.bias, valid, random, *results)
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
