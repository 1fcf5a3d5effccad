"""Running means and standard deviations: networks receive values of order 1. Parts of the value head that use them.

The statistics are buffers, sent with the weights and saved in every checkpoint, so actors and learner compute the same
function. Only the learner changes them, between updates.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

LIMIT = 10.0  # Normalized observations are clipped to plus or minus this
RELATIVE_FLOOR = 1e-5  # Smallest deviation relative to the mean, in unknown units; float32 resolves 6e-8 of a value
LEAST_UNIT = 1e-2  # Smallest deviation of returns, relative to the mean magnitude of nonzero rewards
BATCHES = 20.0  # Number of batches over which moments of returns and magnitudes of rewards are averaged
HIDDEN = 64  # Units that combine the core's output with privileged information


def alone(*parts: Any) -> Sequence[Any]:
    """Return the sums over the learners of an agent with a single learner."""
    return parts


def share_sums(agent: nn.Module, total: Callable[..., Sequence[Any]]) -> None:
    """Make an agent's statistics include the data of all its learners; `total` sums over the learners."""
    for part in agent.modules():
        if isinstance(part, Moments | Shares):
            part.total = total


class Moments(nn.Module):
    """Mean and standard deviation of F = `size` features: a plain average until the total weight reaches `memory`, then
    an exponential average in which new data of weight n has the share n / memory. Deviations are at least `floor`. None
    is for features in unknown units: `forward` returns 0 before the first update, deviations are at least 1e-5 of the
    mean, and a feature that was always 0 stays 0."""

    def __init__(self, size: int, memory: float, floor: float | None = None) -> None:
        super().__init__()
        self.memory, self.floor = memory, floor
        self.total: Callable[..., Sequence[Any]] = alone
        self.mean = nn.Buffer(torch.zeros(size))
        self.deviation = nn.Buffer(torch.ones(size))
        self.weight = nn.Buffer(torch.zeros(()))

    @torch.no_grad()
    def update(self, values: Tensor, weight: float | None, valid: Tensor | None = None) -> None:
        """Add values [N, F] with this weight; do nothing if any of them is not finite or there are none. Weights of
        several learners are added; with None, the values of all learners together have a weight of 1. Only values where
        `valid` (bool [N]) is set count. A feature whose new moments are not finite (squares overflow above about 1e19)
        is unchanged. Does not synchronize with the device."""
        count: Tensor | float = float(len(values))
        if valid is not None:
            values, count = torch.where(valid.unsqueeze(1), values, 0.0), valid.sum()
        bad = (~values.isfinite()).sum()
        new, count, added, bad = self.total(values.sum(0), count, weight or 0.0, bad)
        added = 1.0 if weight is None else added
        ok = (bad == 0) & (count > 0)
        # r = n / (w + n);  m' = m + r (m_new - m);  v' = (1 - r) (v + (m - m')^2) + r (v_new + (m_new - m')^2)
        rate = added / (self.weight.clamp(max=max(self.memory - added, 0.0)) + added)
        new = new / count  # NaN, and unused, without values
        spread = (values - new).square()
        if valid is not None:
            spread = torch.where(valid.unsqueeze(1), spread, 0.0)
        (spread,) = self.total(spread.sum(0))
        spread = spread / count
        mean = self.mean + rate * (new - self.mean)
        variance = (1 - rate) * (self.deviation.square() + (self.mean - mean).square())
        variance = variance + rate * (spread + (new - mean).square())
        fits = ok & mean.isfinite() & variance.isfinite()
        self.mean.copy_(torch.where(fits, mean, self.mean))
        self.deviation.copy_(torch.where(fits, variance.sqrt().clamp(min=self.floor or 0.0), self.deviation))
        self.weight.copy_(torch.where(fits.any(), (self.weight + added).clamp(max=self.memory), self.weight))

    @property
    def unused(self) -> bool:
        """Whether there has been no update yet; synchronizes with the device."""
        return self.weight.is_meta or not bool(self.weight)

    def normalized(self, values: Tensor) -> Tensor:
        """[..., F] -> (values - mean) / deviation."""
        deviation = self.deviation
        if self.floor is None:
            deviation = torch.maximum(deviation, RELATIVE_FLOOR * self.mean.abs())
            deviation = torch.where((deviation > 0) & (self.weight > 0), deviation, torch.inf)
        return (values - self.mean) / deviation

    def forward(self, values: Tensor) -> Tensor:
        """[..., F] -> `normalized`, clipped to plus or minus LIMIT."""
        return self.normalized(values).clamp(-LIMIT, LIMIT)


def symlog(values: Tensor) -> Tensor:
    """sign(x) log(1 + |x|) (Hafner et al. 2023, "Mastering diverse domains through world models", equation 9)."""
    return values.sign() * values.abs().log1p()


class Shares(nn.Module):
    """Shares of K `kinds` of cells, averaged as in `Moments`; kinds with a share below `floor` are scaled alike."""

    def __init__(self, kinds: int, memory: float, floor: float) -> None:
        super().__init__()
        self.memory, self.floor = memory, floor
        self.total: Callable[..., Sequence[Any]] = alone
        self.share = nn.Buffer(torch.zeros(kinds))
        self.weight = nn.Buffer(torch.zeros(()))

    @torch.no_grad()
    def update(self, kinds: Tensor, cells: int, weight: float) -> None:
        """Add cells of these `kinds` (long [N]) with this weight."""
        count = kinds.new_zeros(self.share.shape).index_add_(0, kinds, torch.ones_like(kinds))
        count, num_cells, weight = self.total(count, float(cells), weight)
        rate = weight / (self.weight.clamp(max=max(self.memory - weight, 0.0)) + weight)
        # s' = s + r (n / cells - s) with r as in `Moments`; n are integers, since float32 cannot count beyond 2^24
        new = count.to(self.share.dtype) / num_cells
        self.share.add_(rate * (new - self.share))
        self.weight.copy_((self.weight + weight).clamp(max=self.memory))

    def factors(self, groups: int) -> Tensor:
        """Return float [K]: 1 / sqrt(share), normalized in each group to a mean square of 1 over the cells."""
        squares = self.share.clamp(min=self.floor).reciprocal()
        mean = (self.share * squares).view(groups, -1).sum(1, keepdim=True)
        factors = (squares.view(groups, -1) / mean.clamp(min=self.floor)).sqrt().flatten()
        return torch.where(self.weight > 0, factors, 1.0)


class RescaledHead(nn.Linear):
    """A linear layer from D features to one value, rescaled by running statistics: V = deviation * (w x + b) + mean.

    The learner sets mean and deviation to those of the returns, and changes w and b so that V stays unchanged
    (van Hasselt et al. 2016, "Learning values across many orders of magnitude", equations 5 to 7: PopArt).
    The deviation is at least 1e-2 times the mean magnitude of nonzero rewards, `reward`. The first nonzero reward sets
    the unit, to which earlier outputs of the head are rescaled, so learning does not depend on the scale of rewards.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.moments = Moments(out_features, memory=BATCHES, floor=0.0)
        self.reward = nn.Buffer(torch.zeros(out_features))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self.moments.deviation + self.moments.mean

    @property
    def unit(self) -> Tensor:
        """float [1]: magnitude of values and rewards that is scaled to 1."""
        return self.moments.deviation.clone()

    @torch.no_grad()
    def measure(self, rewards: Tensor, valid: Tensor) -> None:
        """Add magnitudes of rewards [N] where `valid` (bool [N]) is set, except 0 and those too large to be squared."""
        sizes = rewards.abs()
        counts = valid & (sizes > 0) & sizes.square().isfinite()
        size, count = self.moments.total(torch.where(counts, sizes, 0.0).sum(), counts.sum())
        size = size / count.clamp(min=1)
        rate = torch.where(self.reward > 0, 1 / BATCHES, 1.0)
        new = torch.where(count > 0, self.reward + rate * (size - self.reward), self.reward)
        factor = torch.where((self.reward == 0) & (new > 0), new, 1.0)
        self.moments.mean.mul_(factor)
        self.moments.deviation.mul_(factor)
        self.reward.copy_(new)

    @torch.no_grad()
    def renormalize(self, returns: Tensor, valid: Tensor) -> None:
        """Add returns [N] where `valid` (bool [N]) is set; the values predicted by the head stay unchanged.

        s' (w' x + b') + m' = s (w x + b) + m    with    w' = w s / s',  b' = (s b + m - m') / s'
        """
        mean, deviation = self.moments.mean.clone(), self.moments.deviation.clone()
        self.moments.update(returns.unsqueeze(-1), None, valid)
        least = LEAST_UNIT * torch.where(self.reward > 0, self.reward, 1.0)
        self.moments.deviation.copy_(torch.maximum(self.moments.deviation, least))
        self.weight.mul_(deviation / self.moments.deviation)
        bias = (self.bias * deviation + (mean - self.moments.mean)) / self.moments.deviation
        changed = (mean != self.moments.mean) | (deviation != self.moments.deviation)
        self.bias.copy_(torch.where(changed, bias, self.bias))

    @staticmethod
    def upgrade(weights: dict[str, Tensor], prefix: str) -> None:
        """Complete the weights of a head saved by a version with an absolute floor, equivalent to a `reward` of 1."""
        if prefix + "moments.weight" in weights:
            weights.setdefault(prefix + "reward", torch.ones_like(weights[prefix + "moments.mean"]))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        self.upgrade(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


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
