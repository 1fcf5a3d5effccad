"""Episode boundaries: from the T+1 steps of an unroll to the T transitions that returns are made of.

Step t is what the world says before action t. Under NEXT_STEP autoreset the last step of an episode shows its final
observation with `terminated` or `truncated` set; the action there is ignored, and step t+1 begins a new episode:

    step             t-1        t          t+1        t+2
    observation      s_5        s_6        s'_0       s'_1          s_6 ends the episode
    terminated       0          1          0          0
    transition       t-1 -> t   t -> t+1   t+1 -> t+2
    valid            yes        no (dead)  yes
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Transitions(NamedTuple):
    """The steps t -> t+1 of an unroll, [T, B] each; rewards and discounts are floats, valid is bool."""

    rewards: Tensor
    discounts: Tensor
    valid: Tensor


def transitions(reward: Tensor, terminated: Tensor, truncated: Tensor, values: Tensor, discount: float) -> Transitions:
    """Rewards, discounts and the mask of transitions that really happened.

    A transition into a terminated step has discount 0. One into a truncated step keeps its discount: the episode
    bootstraps from the value of its own final observation. The ignored transition from a final step t gets

        d_t = 0,  r_t = V_t    so that    delta_t = r_t + d_t V_{t+1} - V_t = 0    and every return at t is V_t itself,

    which hands exactly V_t to the step before and lets nothing of the next episode through. Returns, advantages and
    V-trace therefore need no special case; `valid` keeps the dead steps out of losses and counts.

    Args:
        reward: reward that came with each step, float [T+1, B].
        terminated, truncated: flags of each step, bool [T+1, B].
        values: of steps 0..T-1, float [T, B]; no gradient goes back to them.
        discount: gamma, per step, in 0..1.
    """
    final = terminated | truncated
    valid = ~final[:-1]
    rewards = torch.where(valid, reward[1:], values.detach())
    discounts = discount * (valid & ~terminated[1:]).to(values.dtype)
    return Transitions(rewards, discounts, valid)
