"""Concrete memory: a chain of low-pass filters (Stepleton et al. 2018, "Low-pass recurrent neural networks")."""

import math
from bisect import bisect_left
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..kernels import Affine, Linear
from .core import Axis, Core, Step, Unrolled
from .fast import bf16
from .fast.pool_views import Filters, Views, hold
from .fast.routes import arrays, check, stands_for
from .fast.scan import gradient_cuts
from .linear.stack import scan


class ConcreteState(NamedTuple):
    pools: Tensor  # p^1 .. p^k [B, num_pools, pool_size]


class Concrete(Core):
    """Concrete: a chain of k pools, each of which smooths the previous pool, with one readout layer per pool.

    a_n = base^-n, P = pool_size, k = num_pools.

        u_t   = W x_t                                   W [P, input_size], initially base^-1 times a padded identity
        p^1_t = u_t + (1 - a_1) p^1_{t-1}               W holds a_1: u_t = a_1 p^0_t      (section 2; figures 11, 12)
        p^n_t = a_n p^{n-1}_t + (1 - a_n) p^n_{t-1}     n >= 2, no gradient               (section 2)
        v^n_t = relu(V_n p^n_t / s_n + b_n)             a "viewport" of viewport_size per pool; s_n = 1
        y_t   = relu(W_s [v^1_t ; ..; v^k_t] + b_s)     the "summarizer": output [B, summarizer_size]

    An input reaches all pools immediately; the inputs in pool n are sum_{i<=n} (base^i - 1) steps old on average
    (1, 4, 11, 26, 57, .. for base 2). All pools start at zero. Gradients pass only through the first pool, including
    its recurrence, as in the paper's experiments; every viewport still learns to read its pool.

    Choices where the paper (without released code) is silent or contradictory: the newest input has weight 1/b (section
    2), not 1 - 1/b (App. G); p^0 itself is not read (as in the figures; section 2 also lists p^0); viewports and
    summarizer have biases, ReLUs, normal initial weights of variance 2 / fan in and zero biases (He et al. 2015).

    With `unit_views`, our addition, s_n is the standard deviation of p^n for independent inputs of variance 1, so that
    an event is as visible in a slow pool as in a fast one. It needs inputs of zero mean (`normalize_features`).
    """

    loops_over_time = False
    in_a_row = True  # Whether every pool smooths the previous one
    parts_of_state = (Axis("pool", "pools", 1),)

    def __init__(
        self,
        input_size: int,
        pool_size: int = 128,
        num_pools: int = 10,
        base: float = 2.0,
        viewport_size: int = 16,
        summarizer_size: int = 128,
        unit_views: bool = False,
    ) -> None:
        super().__init__(input_size, summarizer_size)
        if base <= 1:
            raise ValueError(f"base is {base}; allowed: above 1 (pool n keeps 1 - base^-n of itself per step)")
        self.num_pools, self.pool_size, self.unit_views = num_pools, pool_size, unit_views
        self._rates = [base**-n for n in range(1, num_pools + 1)]
        self.embedding = Linear(input_size, pool_size, bias=False)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.eye(pool_size, input_size) * self._rates[0])
        width = min(pool_size, input_size)  # the other features of a pool are initially zero
        self.viewport_weight = nn.Parameter(torch.randn(num_pools, pool_size, viewport_size) * (2 / width) ** 0.5)
        self.viewport_bias = nn.Parameter(torch.zeros(num_pools, viewport_size))
        self.summarizer = Linear(num_pools * viewport_size, summarizer_size)
        nn.init.kaiming_normal_(self.summarizer.weight, nonlinearity="relu")
        nn.init.zeros_(self.summarizer.bias)
        self.set_constants()

    def set_constants(self) -> None:
        device = self.embedding.weight.device
        rates = torch.tensor(self._rates, dtype=torch.float64)
        feedback, gain = filters(self._rates, self.in_a_row)
        units = deviations(feedback, gain) if self.unit_views else torch.ones_like(rates)
        self._factors = units.reciprocal().view(-1, 1, 1).to(device)
        gain = gain / self._rates[0]  # u_t already includes a_1
        self._feedback, self._gain = feedback.to(device), gain.unsqueeze(1).to(device)
        gains = rates[1:] if self.in_a_row else rates[1:] / self._rates[0]
        self._stages = torch.stack([torch.cat([torch.ones_like(rates[:1]), gains]), 1 - rates]).to(device)

    def initial_state(self, batch_size: int) -> ConcreteState:
        return ConcreteState(self.embedding.weight.new_zeros(batch_size, self.num_pools, self.pool_size))

    def half_lives(self) -> list[float]:
        """Return for each pool the steps after which half of its summed response to one input has passed. The sum over
        n steps is (I - F)^-1 (I - F^n) g, interpolated between steps."""
        feedback, gain = self._feedback, self._gain.squeeze(1)
        one = torch.eye(len(gain), dtype=torch.float64)
        inverse = torch.linalg.inv(one - feedback)

        def share(pool: int, steps: int) -> float:
            sums = inverse @ (one - torch.linalg.matrix_power(feedback, steps)) @ gain
            return float(sums[pool] / (inverse @ gain)[pool])

        spans: list[float] = []
        for pool in range(len(gain)):
            high = 1
            while share(pool, high) < 0.5:
                high *= 2
            low = bisect_left(range(high + 1), 0.5, key=partial(share, pool)) - 1
            spans.append(low + (0.5 - share(pool, low)) / (share(pool, low + 1) - share(pool, low)))
        return spans

    def _viewports(self) -> Tensor:
        """Return V_n / s_n [num_pools, pool_size, viewport_size]."""
        weight = self.viewport_weight
        return weight * self._factors.to(weight) if self.unit_views else weight

    def forward(self, inputs: Tensor, state: ConcreteState) -> tuple[Tensor, ConcreteState]:
        embedded = self.embedding(inputs).unsqueeze(1)
        pools = self._feedback.to(embedded) @ state.pools + self._gain.to(embedded) * embedded
        pools = torch.cat([pools[:, :1], pools[:, 1:].detach()], dim=1)
        views = torch.bmm(pools.transpose(0, 1), self._viewports()).transpose(0, 1)
        return self._summary(views.flatten(1)), ConcreteState(pools)

    def compiles(self, inputs: Tensor) -> bool:
        return stands_for(self, inputs)

    def fast_step(self, batch_size: int) -> Step | None:
        weight = self.embedding.weight
        if not stands_for(self, weight):
            return None
        embed, summarize = Affine(weight), Affine(self.summarizer.weight, self.summarizer.bias)
        views, bias = self._viewports(), self.viewport_bias.flatten()
        gains, decays = arrays(*self._stages.to(weight))

        def step(inputs: Tensor, reset: Tensor, state: ConcreteState) -> tuple[Tensor, ConcreteState]:
            pools = state.pools.clone(memory_format=torch.contiguous_format)
            hold(embed(inputs.numpy())[None], reset.numpy()[None], gains, decays, self.in_a_row, pools.numpy())
            read = torch.bmm(pools.transpose(0, 1), views).transpose(0, 1).flatten(1).add_(bias).relu_()
            return torch.from_numpy(summarize(read.numpy())).relu_(), ConcreteState(pools)

        return step

    def unroll_compiled(self, inputs: Tensor, reset: Tensor, state: ConcreteState, bptt_length: int | None) -> Unrolled:
        """`unroll` for a CPU: viewports of the inputs, filtered step by step in compiled code."""
        pools = (inputs.shape[1], self.num_pools, self.pool_size)
        check("Concrete", inputs, pools=(state.pools, pools), reset=(reset, inputs.shape[:2]))
        size, channels, weight = inputs.shape[-1], self.viewport_bias.numel(), self.embedding.weight
        cheaper = size * channels > self.pool_size * (size + channels)  # two matrix multiplications instead of one
        if cheaper or bf16.suits(inputs, weight):  # since a step rounds the embedding, too
            inputs, weight = self.embedding(inputs), None
        power = torch.linalg.matrix_power(self._feedback, len(inputs)).to(inputs)
        (gains, decays), cut = self._stages.to(inputs), gradient_cuts(reset, bptt_length)
        stages = Filters(gains, decays, self.in_a_row, power)
        views, pools = Views.apply(  # pyright: ignore
            stages, reset, cut, inputs, state.pools, weight, self._viewports(), self.viewport_bias
        )
        outputs = self.summarizer(views).relu_()
        return outputs, ConcreteState(torch.cat([pools[:, :1], pools[:, 1:].detach()], dim=1)), None

    def unroll_at_once(self, inputs: Tensor, reset: Tensor, state: ConcreteState, bptt_length: int | None) -> Unrolled:
        """`unroll` for other devices: one scan over all steps per pool, with the same operations for every batch."""
        embedded = below = self.embedding(inputs)
        start, pools = state.pools.to(embedded), list[Tensor]()
        for n, (gain, decay) in enumerate(zip(*self._stages.to(embedded), strict=True)):
            with torch.set_grad_enabled(torch.is_grad_enabled() and n == 0):
                factors, cut = decay.expand(1, 1, self.pool_size), bptt_length if n == 0 else None
                pools.append(scan(factors, gain * below, reset, start[:, n], cut))
            below = pools[-1] if self.in_a_row else embedded
        views = [pool @ viewport for pool, viewport in zip(pools, self._viewports(), strict=True)]
        return self._summary(torch.cat(views, -1)), ConcreteState(torch.stack([pool[-1] for pool in pools], 1)), None

    def _summary(self, views: Tensor) -> Tensor:
        """Views without bias [..., num_pools * viewport_size] -> output [..., summarizer_size]."""
        return self.summarizer((views + self.viewport_bias.flatten()).relu_()).relu_()


class Parallel(Concrete):
    """Parallel pools, the control condition of `Concrete`: every pool smooths the embedding (figures 1b, 14 and 15).

        p^1_t = u_t + (1 - a_1) p^1_{t-1},   p^n_t = a_n u_t / a_1 + (1 - a_n) p^n_{t-1}   n >= 2, no gradient

    The inputs in pool n are base^n - 1 steps old on average; the newest input has the largest weight.
    """

    in_a_row = False


def filters(rates: list[float], chained: bool) -> tuple[Tensor, Tensor]:
    """Return F [k, k] and g [k], float64, of p_t = F p_{t-1} + g p^0_t with a_n = rates[n - 1]. In a chain, row n of F
    is a_n times row n - 1, plus 1 - a_n in column n, and g_n = a_1 .. a_n; in parallel, F = diag(1 - a) and g = a."""
    rate = torch.tensor(rates, dtype=torch.float64)
    feedback, gain = torch.diag(1 - rate), rate.clone()
    for n in range(1, len(rates) if chained else 0):
        feedback[n] += rate[n] * feedback[n - 1]
        gain[n] = math.prod(rates[: n + 1])
    return feedback, gain


def deviations(feedback: Tensor, gain: Tensor) -> Tensor:
    """Return float64 [k]: standard deviation of every pool after many independent inputs of mean 0 and variance 1. The
    covariance C of the pools solves C = F C F' + g g'."""
    system = torch.eye(len(gain) ** 2, dtype=torch.float64) - torch.kron(feedback, feedback)
    covariance = torch.linalg.solve(system, torch.outer(gain, gain).flatten())
    return covariance.view_as(feedback).diagonal().sqrt()
