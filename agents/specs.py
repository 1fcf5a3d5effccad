"""Specs of an environment's observations and actions, independent of Gymnasium, and functions for their values."""

import math
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor


class ArraySpec(NamedTuple):
    """Array of an observation."""

    shape: tuple[int, ...]
    scale: float = 1.0  # The network receives observation * scale (1/255 for bytes of an image)


ObservationSpec: TypeAlias = ArraySpec | dict[str, "ObservationSpec"]

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class ChoiceSpec(NamedTuple):
    """K simultaneous choices, choice k among `choices[k]` options; a plain discrete action has K = 1 and no K axis."""

    choices: tuple[int, ...]

    @property
    def num_outputs(self) -> int:
        """Width of the policy head and of `as_input`."""
        return sum(self.choices)

    @property
    def shape(self) -> tuple[int, ...]:
        """Trailing shape of an action: () for one choice, (K,) for several."""
        return () if len(self.choices) == 1 else (len(self.choices),)


class BoxSpec(NamedTuple):
    """K real values, each sampled from a separate Gaussian. The environment's bounds, if any, are -1..1 here.
    Logits [..., 2 K] are K means, then K logarithms of standard deviations, which are parameters of the agent and do
    not depend on observations (Schulman et al. 2015, "Trust Region Policy Optimization", appendix D)."""

    size: int

    @property
    def num_outputs(self) -> int:
        return self.size

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,)


ActionSpec: TypeAlias = ChoiceSpec | BoxSpec


def scaled(observation: Tensor, scale: float) -> Tensor:
    x = observation.float()
    return x if scale == 1.0 else x * scale


def with_channels_last(x: Tensor, first: bool) -> Tensor:
    """Permute images of either layout to [N, rows, cols, channels]."""
    return x.permute(0, 2, 3, 1) if first else x


def no_action(spec: ActionSpec, batch_size: int, device: torch.device) -> Tensor:
    """Return the placeholder [batch_size, *spec.shape] for the action before an episode's first step: -1 (Box: 0)."""
    if isinstance(spec, BoxSpec):
        return torch.zeros((batch_size, *spec.shape), device=device)
    return torch.full((batch_size, *spec.shape), -1, device=device)


def sample(spec: ActionSpec, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Sample actions [..., *spec.shape] from logits: int64 (Gumbel-max), or float32 for a Box."""
    return sample_with_noise(spec, logits, noise_like(spec, logits, generator))


def noise_like(spec: ActionSpec, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Generate the random values for one sample from logits [..., num_outputs]."""
    if isinstance(spec, BoxSpec):
        return torch.empty_like(logits.chunk(2, -1)[0]).normal_(generator=generator)
    # Above 0: a masked option's score is -inf - log(noise), which must not be -inf + inf.
    return torch.empty_like(logits).exponential_(generator=generator).clamp_(min=torch.finfo(logits.dtype).tiny)


def sample_with_noise(spec: ActionSpec, logits: Tensor, noise: Tensor) -> Tensor:
    """Sample actions [..., *spec.shape] with these random values."""
    if isinstance(spec, BoxSpec):
        mean, log_deviation = logits.chunk(2, -1)
        return mean + log_deviation.exp() * noise
    return best(spec, logits - noise.log())


def best(spec: ActionSpec, scores: Tensor) -> Tensor:
    """Return the actions [..., *spec.shape] with the highest scores; for a Box, the means."""
    if isinstance(spec, BoxSpec):
        return scores.chunk(2, -1)[0]
    if len(spec.choices) == 1:
        return scores.argmax(-1)
    return torch.stack([part.argmax(-1) for part in scores.split(spec.choices, -1)], -1)


def log_policy(spec: ActionSpec, logits: Tensor) -> Tensor:
    """Return log-probabilities [..., num_outputs] of every option of every choice; choices are independent. For a Box,
    return the logits, which define its Gaussians."""
    if isinstance(spec, BoxSpec):
        return logits
    if len(spec.choices) == 1:
        return torch.log_softmax(logits, -1)
    return torch.cat([torch.log_softmax(part, -1) for part in logits.split(spec.choices, -1)], -1)


def log_probability(spec: ActionSpec, log_policies: Tensor, action: Tensor) -> Tensor:
    """Return log pi(action) [...] in nats for actions [..., *spec.shape], from the values of `log_policy`.
    For a Box, the log-density: - sum_k [(a_k - m_k)^2 / (2 s_k^2) + log s_k + log(2 pi) / 2]."""
    if isinstance(spec, BoxSpec):
        mean, log_deviation = log_policies.chunk(2, -1)
        scaled = (action - mean) * (-log_deviation).exp()
        return -(0.5 * scaled.square() + log_deviation + _HALF_LOG_2PI).sum(-1)
    if len(spec.choices) == 1:
        return log_policies.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    starts = accumulate(spec.choices[:-1], initial=0)
    index = torch.stack([part + start for part, start in zip(action.unbind(-1), starts, strict=True)], -1)
    return log_policies.gather(-1, index).sum(-1)


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Set logits [..., num_outputs] to -inf where `mask` (bool, same shape) is False; None leaves them unchanged."""
    return logits if mask is None else logits.masked_fill(~mask, -torch.inf)


def entropy(spec: ActionSpec, log_policies: Tensor) -> Tensor:
    """H = - sum_a pi(a) log pi(a) [...] in nats; for a Box, differential entropy: sum_k [log s_k + log(2 pi e) / 2].
    Masked options (log-probability -inf) contribute 0, also to the gradient."""
    if isinstance(spec, BoxSpec):
        return (log_policies.chunk(2, -1)[1] + 0.5 + _HALF_LOG_2PI).sum(-1)
    return -(log_policies.exp() * _finite(log_policies)).sum(-1)


def kl_divergence(spec: ActionSpec, log_behaviors: Tensor, log_policies: Tensor) -> Tensor:
    """KL(mu || pi) = sum_a mu(a) (log mu(a) - log pi(a)) [...] in nats, from values of `log_policy`. For a Box,
    sum_k [log(s_k / d_k) + (d_k^2 + (n_k - m_k)^2) / (2 s_k^2) - 1/2] with mu = N(n, d) and pi = N(m, s)."""
    if isinstance(spec, BoxSpec):
        (n, log_d), (m, log_s) = log_behaviors.chunk(2, -1), log_policies.chunk(2, -1)
        squares = (2 * log_d).exp() + (n - m).square()
        return (log_s - log_d + 0.5 * squares * (-2 * log_s).exp() - 0.5).sum(-1)
    return (log_behaviors.exp() * (_finite(log_behaviors) - _finite(log_policies))).sum(-1)


def _finite(log_policies: Tensor) -> Tensor:
    """Replace -inf with the lowest finite value, so that 0 * log 0 is 0."""
    return log_policies.clamp(min=torch.finfo(log_policies.dtype).min)


def as_input(spec: ActionSpec, action: Tensor) -> Tensor:
    """Encode actions as float32 [..., num_outputs]: one-hot choices, zeros for `no_action`; a Box clipped to -1..1."""
    if isinstance(spec, BoxSpec):
        return action.clamp(-1, 1)
    actions = (action,) if len(spec.choices) == 1 else action.unbind(-1)
    options = [torch.arange(n, device=action.device) for n in spec.choices]
    return torch.cat([(a.unsqueeze(-1) == o).float() for a, o in zip(actions, options, strict=True)], -1)
