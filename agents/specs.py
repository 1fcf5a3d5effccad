"""What an agent must know of a world's spaces, without knowing Gymnasium."""

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor


class ArraySpec(NamedTuple):
    """One array of an observation."""

    shape: tuple[int, ...]
    scale: float = 1.0
    """The network sees observation * scale (1/255 for bytes of a picture)."""


ObservationSpec: TypeAlias = ArraySpec | dict[str, "ObservationSpec"]


class ActionSpec(NamedTuple):
    """K simultaneous choices of `choices[k]` options each; an ordinary discrete action is K = 1 and has no K axis."""

    choices: tuple[int, ...]

    @property
    def num_logits(self) -> int:
        """Width of the policy head."""
        return sum(self.choices)

    @property
    def shape(self) -> tuple[int, ...]:
        """Trailing shape of an action: () for one choice, (K,) for several."""
        return () if len(self.choices) == 1 else (len(self.choices),)


def sample(spec: ActionSpec, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw actions int64 [..., *spec.shape] from logits [..., num_logits] (Gumbel-max)."""
    noise = torch.empty_like(logits).exponential_(generator=generator).log_()
    return best(spec, logits - noise)


def best(spec: ActionSpec, scores: Tensor) -> Tensor:
    """The action int64 [..., *spec.shape] with the highest scores [..., num_logits]."""
    if len(spec.choices) == 1:
        return scores.argmax(-1)
    return torch.stack([part.argmax(-1) for part in scores.split(spec.choices, -1)], -1)


def log_policy(spec: ActionSpec, logits: Tensor) -> Tensor:
    """Log-probabilities [..., num_logits] of every option of every choice; simultaneous choices are independent."""
    if len(spec.choices) == 1:
        return torch.log_softmax(logits, -1)
    return torch.cat([torch.log_softmax(part, -1) for part in logits.split(spec.choices, -1)], -1)


def log_probability(spec: ActionSpec, log_policies: Tensor, action: Tensor) -> Tensor:
    """log pi(action) [...] in nats, of actions int64 [..., *spec.shape] under `log_policy`'s [..., num_logits]."""
    if len(spec.choices) == 1:
        return log_policies.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    starts = torch.tensor([sum(spec.choices[:k]) for k in range(len(spec.choices))], device=action.device)
    return log_policies.gather(-1, action + starts).sum(-1)


def one_hot(spec: ActionSpec, action: Tensor) -> Tensor:
    """float32 [..., num_logits]: one-hot of each choice; a negative action (none yet) is all zeros."""
    actions = (action,) if len(spec.choices) == 1 else action.unbind(-1)
    options = [torch.arange(n, device=action.device) for n in spec.choices]
    return torch.cat([(a.unsqueeze(-1) == o).float() for a, o in zip(actions, options, strict=True)], -1)
