"""Running means and standard deviations of observations and returns.

With them, a network receives values of order 1 for any units of the environment, and one learning rate and one value
cost suit rewards of any size. They are buffers that are sent with the weights, so actors and learner compute the same
function, and every checkpoint contains them. Only the learner changes them, between updates.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

LIMIT = 10.0  # Normalized observations are clipped to plus or minus this
RELATIVE_FLOOR = 1e-5
"""Smallest deviation of a feature in unknown units, relative to its mean: float32 resolves 6e-8 of it."""
LEAST_UNIT = 1e-2  # Smallest unit of values, relative to the mean magnitude of nonzero rewards


def alone(*parts: Any) -> Sequence[Any]:
    """Statistics that are summed over the learners of an agent."""
    return parts


def share_sums(agent: nn.Module, total: Callable[..., Sequence[Any]]) -> None:
    """Make the statistics of an agent with several learners count the data of all; `total` sums over them."""
    for part in agent.modules():
        if isinstance(part, Moments | Shares):
            part.total = total


class Moments(nn.Module):
    """Mean and standard deviation of F features over the data of `update`.

    A plain average until the total weight is `memory`, then an exponential one with a share of new weight n of
    n / memory.

    Args:
        size: number of features F.
        memory: largest weight of earlier data, above 0.
        floor: smallest deviation. None, for features in unknown units: `forward` returns 0 before the first update,
            deviations are at least 1e-5 of the mean, and a feature that was always 0 stays 0.
    """

    def __init__(self, size: int, memory: float, floor: float | None = None) -> None:
        super().__init__()
        self.memory, self.floor = memory, floor
        self.total: Callable[..., Sequence[Any]] = alone
        self.mean: Tensor
        self.deviation: Tensor
        self.weight: Tensor
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("deviation", torch.ones(size))
        self.register_buffer("weight", torch.zeros(()))

    @torch.no_grad()
    def update(self, values: Tensor, weight: float | None, valid: Tensor | None = None) -> None:
        """Add values [N, F] with this weight; nothing if one of them is not finite or there are none. Weights of
        several learners are added; None is a weight of 1 for the values of all. Only values where `valid` (bool [N]) is
        set are used. A feature with a non-finite new moment, since squares overflow above about 1e19, is unchanged.
        Nothing is read from the device."""
        count: Tensor | float = float(len(values))
        if valid is not None:
            values, count = torch.where(valid.unsqueeze(1), values, 0.0), valid.sum()
        bad = (~values.isfinite()).sum()
        new, count, shown, bad = self.total(values.sum(0), count, weight or 0.0, bad)
        shown = 1.0 if weight is None else shown
        ok = (bad == 0) & (count > 0)
        # r = n / (w + n);  m' = m + r (m_new - m);  v' = (1 - r) (v + (m - m')^2) + r (v_new + (m_new - m')^2)
        rate = shown / (self.weight.clamp(max=max(self.memory - shown, 0.0)) + shown)
        new = new / count  # nan without values, and then not used
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
        self.weight.copy_(torch.where(fits.any(), (self.weight + shown).clamp(max=self.memory), self.weight))

    @property
    def unused(self) -> bool:
        """Whether there was no update yet; waits for the device."""
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
    """Share of the cells of each of K kinds over the data of `update`, averaged as in `Moments`.

    Args:
        kinds: number of kinds K.
        memory: largest weight of earlier data, above 0.
        floor: kinds rarer than this share are treated as equally rare.
    """

    def __init__(self, kinds: int, memory: float, floor: float) -> None:
        super().__init__()
        self.memory, self.floor = memory, floor
        self.total: Callable[..., Sequence[Any]] = alone
        self.share: Tensor
        self.weight: Tensor
        self.register_buffer("share", torch.zeros(kinds))
        self.register_buffer("weight", torch.zeros(()))

    @torch.no_grad()
    def update(self, kinds: Tensor, cells: int, weight: float) -> None:
        """Add cells of these `kinds` (long [N]) with this weight."""
        count = kinds.new_zeros(self.share.shape).index_add_(0, kinds, torch.ones_like(kinds))
        count, shown, weight = self.total(count, float(cells), weight)
        if not shown:
            return
        rate = weight / (self.weight.clamp(max=max(self.memory - weight, 0.0)) + weight)
        # s' = s + r (n / cells - s) with r as in `Moments`; integers n, since floats stop counting at 2^24
        new = count.to(self.share.dtype) / shown
        self.share.add_(rate * (new - self.share))
        self.weight.copy_((self.weight + weight).clamp(max=self.memory))

    def factors(self, groups: int) -> Tensor:
        """float [K]: 1 / sqrt(share) in units in which their mean square over cells is 1 in each of the groups."""
        squares = self.share.clamp(min=self.floor).reciprocal()
        mean = (self.share * squares).view(groups, -1).sum(1, keepdim=True)
        factors = (squares.view(groups, -1) / mean.clamp(min=self.floor)).sqrt().flatten()
        return torch.where(self.weight > 0, factors, 1.0)


_BATCHES = 20.0  # Number of batches over which moments of returns and magnitudes of rewards are averaged


class RescaledHead(nn.Linear):
    """A linear layer from D features to one value in running units, V = deviation * (w x + b) + mean.

    The learner sets mean and deviation to those of the returns, and changes w and b accordingly so that V stays
    unchanged (van Hasselt et al. 2016, "Learning values across many orders of magnitude", equations 5 to 7: PopArt).

    The deviation is at least 1e-2 of the mean magnitude of nonzero rewards, `reward`, so that the error of values
    that are almost equal is not scaled up. Before such a reward, values have no unit: the first one sets
    it, and earlier outputs of the head are in this unit, too. Learning therefore does not depend on the unit of
    rewards.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.moments = Moments(out_features, memory=_BATCHES, floor=0.0)
        self.reward: Tensor
        self.register_buffer("reward", torch.zeros(out_features))

    def forward(self, input: Tensor) -> Tensor:
        """[..., D] -> [..., 1]."""
        return super().forward(input) * self.moments.deviation + self.moments.mean

    @property
    def unit(self) -> Tensor:
        """float [1]: magnitude of values and rewards that is scaled to 1."""
        return self.moments.deviation.clone()

    @property
    def unused(self) -> bool:
        """Whether no return was added yet; waits for the device."""
        return self.moments.unused

    @torch.no_grad()
    def measure(self, rewards: Tensor, valid: Tensor) -> None:
        """Add magnitudes of rewards [N] that are valid (bool [N]) and neither 0 nor too large to be squared."""
        sizes = rewards.abs()
        counts = valid & (sizes > 0) & sizes.square().isfinite()
        size, count = self.moments.total(torch.where(counts, sizes, 0.0).sum(), counts.sum())
        size = size / count.clamp(min=1)
        rate = torch.where(self.reward > 0, 1 / _BATCHES, 1.0)
        new = torch.where(count > 0, self.reward + rate * (size - self.reward), self.reward)
        factor = torch.where((self.reward == 0) & (new > 0), new, 1.0)
        self.moments.mean.mul_(factor)
        self.moments.deviation.mul_(factor)
        self.reward.copy_(new)

    @torch.no_grad()
    def renormalize(self, returns: Tensor, valid: Tensor) -> None:
        """Add returns [N] that are valid (bool [N]); all values stay unchanged.

        s' (w' x + b') + m' = s (w x + b) + m    with    w' = w s / s',  b' = (s b + m - m') / s'
        """
        mean, deviation = self.moments.mean.clone(), self.moments.deviation.clone()
        self.moments.update(returns.unsqueeze(-1), None, valid)
        least = LEAST_UNIT * torch.where(self.reward > 0, self.reward, 1.0)
        self.moments.deviation.copy_(torch.maximum(self.moments.deviation, least))
        self.weight.mul_(deviation / self.moments.deviation)
        bias = (self.bias * deviation + (mean - self.moments.mean)) / self.moments.deviation
        counted = (mean != self.moments.mean) | (deviation != self.moments.deviation)
        self.bias.copy_(torch.where(counted, bias, self.bias))

    @staticmethod
    def upgrade(weights: dict[str, Tensor], prefix: str) -> None:
        """Complete the weights of a head from a version with an absolute floor, which equals that of size 1."""
        if prefix + "moments.weight" in weights:
            weights.setdefault(prefix + "reward", torch.ones_like(weights[prefix + "moments.mean"]))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        self.upgrade(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
