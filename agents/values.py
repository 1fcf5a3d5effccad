"""The values that travel between the world and the agent.

T steps, B environments. Every leaf has the leading axes [B, ...] for one step or [T, B, ...] for an unroll.
"""

from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

ObservationTensor: TypeAlias = Any
"""A tensor [..., B, *shape], or a (nested) dict of them for environments with Dict observations."""


class EnvOutput(NamedTuple):
    """Output of the world at a step, before the agent acts."""

    observation: ObservationTensor
    """[..., B, *shape], uint8 or float32."""
    reward: Tensor
    """[..., B] float32: the reward of the action before this step."""
    terminated: Tensor
    """[..., B] bool: the episode ended here by the rules of the task."""
    truncated: Tensor
    """[..., B] bool: the episode was cut off here."""


class AgentOutput(NamedTuple):
    """Output of the behaviour policy at a step."""

    action: Tensor
    """[..., B] int64, or [..., B, K] for K simultaneous choices; [..., B, K] float32 for a Box of K numbers."""
    logits: Tensor
    """[..., B, sum of choices] float32, unnormalised log-probabilities; of a Box its Gaussians, see specs.py."""
    value: Tensor
    """[..., B] float32."""


def map_observation(function: Any, *observations: ObservationTensor) -> Any:
    """Apply `function` to every array or tensor of observations that share one structure."""
    first = observations[0]
    if isinstance(first, dict):
        return {key: map_observation(function, *(each[key] for each in observations)) for key in first}
    return function(*observations)
