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
    """K simultaneous choices among `choices[k]` options each; an ordinary discrete action is K = 1 and has no K axis."""

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


def log_prob_and_entropy(spec: ActionSpec, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """log pi(action) and the policy's entropy, both [...], in nats; simultaneous choices are independent."""
    parts = logits.split(spec.choices, -1)
    actions = (action,) if len(spec.choices) == 1 else action.unbind(-1)
    log_prob = torch.zeros((), device=logits.device)
    entropy = torch.zeros((), device=logits.device)
    for part, chosen in zip(parts, actions, strict=True):
        log_policy = torch.log_softmax(part, -1)
        log_prob = log_prob + log_policy.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        entropy = entropy - (log_policy.exp() * log_policy).sum(-1)
    return log_prob, entropy


def one_hot(spec: ActionSpec, action: Tensor) -> Tensor:
    """float32 [..., num_logits]: one-hot of each choice; a negative action (none yet) is all zeros."""
    actions = (action,) if len(spec.choices) == 1 else action.unbind(-1)
    options = [torch.arange(n, device=action.device) for n in spec.choices]
    return torch.cat([(a.unsqueeze(-1) == o).float() for a, o in zip(actions, options, strict=True)], -1)
