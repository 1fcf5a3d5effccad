"""Running means and deviations: of observations, so that a network sees numbers of order 1 whatever the environment's
units are, and of returns, so that one learning rate and one cost of the value loss serve every size of reward.

The numbers are buffers: they travel with the weights, so actors and learner compute the same function, and they are in
every checkpoint. Only the learner changes them, between updates.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

LIMIT = 10.0
"""Normalized observations are clipped to plus or minus this."""
RELATIVE_FLOOR = 1e-5
"""The least deviation of a feature in unknown units, as a fraction of its mean: float32 resolves 6e-8 of it."""
LEAST_UNIT = 1e-2
"""The least unit of values, as a fraction of the mean size of the rewards that are not 0."""


def alone(*parts: Any) -> Sequence[Any]:
    """Sums over the learners of an agent, where there is one."""
    return parts


def share_sums(agent: nn.Module, total: Callable[..., Sequence[Any]]) -> None:
    """Let the statistics of an agent with several learners count what all of them show: `total` sums over them."""
    for part in agent.modules():
        if isinstance(part, Moments | Shares):
            part.total = total


class Moments(nn.Module):
    """Mean and standard deviation of F features over what `update` has been shown.

    A plain average until `memory` weight has been shown, then an exponential one in which new weight n counts for
    n / memory.

    Args:
        size: F.
        memory: the most that what came before may weigh, above 0.
        floor: the least deviation. None, for features in unknown units: `forward` returns 0 before the first update,
            no deviation counts as less than 1e-5 of the mean, and a feature that was always 0 stays 0.
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
        """Count in values [N, F] with this weight; nothing if one of them is not finite or there is none.

        Weights of several learners add up; None is a weight of 1 for the values of all.

        Of `valid` (bool [N]) only those that are set. A feature of which a moment would not be finite, since squares
        overflow above about 1e19, stays as it was. Nothing is read back from the device.
        """
        count: Tensor | float = float(len(values))
        if valid is not None:
            values, count = torch.where(valid.unsqueeze(1), values, 0.0), valid.sum()
        bad = (~values.isfinite()).sum()
        new, count, shown, bad = self.total(values.sum(0), count, weight or 0.0, bad)
        shown = 1.0 if weight is None else shown
        ok = (bad == 0) & (count > 0)
        # r = n / (w + n);  m' = m + r (m_new - m);  v' = (1 - r) (v + (m - m')^2) + r (v_new + (m_new - m')^2)
        rate = shown / (self.weight.clamp(max=max(self.memory - shown, 0.0)) + shown)
        new = new / count  # not a number where there is none, and then not used
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
        """Whether no update was counted; waits for the device."""
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
    """Share of the cells that show each of K kinds, over what `update` has been shown, averaged as `Moments` averages.

    Args:
        kinds: K.
        memory: the most that what came before may weigh, above 0.
        floor: kinds rarer than this share count as equally rare.
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
        """Count in so many cells, which show `kinds` (long [N]), with this weight."""
        count = kinds.new_zeros(self.share.shape).index_add_(0, kinds, torch.ones_like(kinds))
        count, shown, weight = self.total(count, float(cells), weight)
        if not shown:
            return
        rate = weight / (self.weight.clamp(max=max(self.memory - weight, 0.0)) + weight)
        # s' = s + r (n / cells - s) with r as in `Moments`; whole numbers n, since floats stop counting at 2^24
        new = count.to(self.share.dtype) / shown
        self.share.add_(rate * (new - self.share))
        self.weight.copy_((self.weight + weight).clamp(max=self.memory))

    def factors(self, groups: int) -> Tensor:
        """float [K]: 1 / sqrt(share) in units in which their mean square over cells is 1 in each of the groups."""
        squares = self.share.clamp(min=self.floor).reciprocal()
        mean = (self.share * squares).view(groups, -1).sum(1, keepdim=True)
        factors = (squares.view(groups, -1) / mean.clamp(min=self.floor)).sqrt().flatten()
        return torch.where(self.weight > 0, factors, 1.0)


_BATCHES = 20.0
"""Batches that the moments of returns and the size of rewards are averaged over."""


class RescaledHead(nn.Linear):
    """A linear layer from D features to one value in running units, V = deviation * (w x + b) + mean.

    The learner keeps mean and deviation at those of the returns, and changes w and b with them so that V stays what it
    was (van Hasselt et al. 2016, "Learning values across many orders of magnitude", equations 5 to 7: PopArt).

    The deviation is at least 1e-2 of the mean size of the rewards that are not 0, `reward`, so that the error of values
    that are all about the same is not scaled up. Until there is such a reward, values have no unit: the first one sets
    it, and what the head returned until then is in this unit, too. Learning therefore does not depend on the unit of
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
        """float [1]: the size of values and rewards that counts as 1."""
        return self.moments.deviation.clone()

    @property
    def unused(self) -> bool:
        """Whether no return was counted; waits for the device."""
        return self.moments.unused

    @torch.no_grad()
    def measure(self, rewards: Tensor, valid: Tensor) -> None:
        """Count the sizes of rewards [N] that are valid (bool [N]) and neither 0 nor too large to be squared."""
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
        """Count in the returns [N] that are valid (bool [N]); every value stays what it was.

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
        """Complete the weights of a head from before the floor was relative: the absolute one is that of size 1."""
        if prefix + "moments.weight" in weights:
            weights.setdefault(prefix + "reward", torch.ones_like(weights[prefix + "moments.mean"]))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        self.upgrade(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
