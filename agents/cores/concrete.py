"""Concrete memory: a chain of low-pass filters (Stepleton et al. 2018, "Low-pass recurrent neural networks").

No code for the network was released; the docstring of `Concrete` lists the choices that the paper leaves open.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import bf16
from ..kernels import Linear
from ..sequence.scan import scan
from .core import Axis, Core, Step, Unrolled
from .fast.acting import Affine
from .fast.pool_views import Filters, Views, hold
from .fast.routes import arrays, check, gradient_cuts, stands_for
from .parts.pools import LinearFilter, chained, deviations, half_lives, parallel


class ConcreteState(NamedTuple):
    """pools [B, num_pools, pool_size]: p^1 .. p^k."""

    pools: Tensor


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

    Choices where the paper is silent or contradictory: the newest input has weight 1/b (section 2), not 1 - 1/b (App.
    G; the two agree for b = 2); p^0 itself is not read (in the figures, only pools have viewports, but the formula of
    section 2 also lists p^0); viewports and summarizer have biases, ReLUs and the usual initialization (normal
    weights of variance 2 / fan in, zero biases: He et al. 2015), so that the content of slow pools is not lost.

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
        super().__init__()
        if base <= 1:
            raise ValueError(f"base is {base}; allowed: above 1 (pool n keeps 1 - base^-n of itself per step)")
        self.input_size, self.output_size = input_size, summarizer_size
        self.num_pools, self.pool_size = num_pools, pool_size
        rates = [base**-n for n in range(1, num_pools + 1)]
        self.unit_views = unit_views
        self.embedding = Linear(input_size, pool_size, bias=False)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.eye(pool_size, input_size) * rates[0])
        width = min(pool_size, input_size)  # the other features of a pool are initially zero
        self.viewport_weight = nn.Parameter(torch.randn(num_pools, pool_size, viewport_size) * (2 / width) ** 0.5)
        self.viewport_bias = nn.Parameter(torch.zeros(num_pools, viewport_size))
        self.summarizer = Linear(num_pools * viewport_size, summarizer_size)
        nn.init.kaiming_normal_(self.summarizer.weight, nonlinearity="relu")
        nn.init.zeros_(self.summarizer.bias)
        self._rates = rates
        self.set_constants()

    def set_constants(self) -> None:
        device = self.embedding.weight.device
        rates = torch.tensor(self._rates, dtype=torch.float64)
        pools = (chained if self.in_a_row else parallel)(self._rates)
        units = deviations(pools) if self.unit_views else torch.ones_like(rates)
        self._factors = units.reciprocal().view(-1, 1, 1).to(device)
        pools = pools._replace(gain=pools.gain / self._rates[0])  # u_t already includes a_1
        self._feedback, self._gain = pools.feedback.to(device), pools.gain.unsqueeze(1).to(device)
        first = torch.ones_like(rates[:1])
        gains = torch.cat([first, rates[1:] if self.in_a_row else rates[1:] / self._rates[0]])
        self._stages = torch.stack([gains, 1 - rates]).to(device)

    def initial_state(self, batch_size: int) -> ConcreteState:
        return ConcreteState(self.embedding.weight.new_zeros(batch_size, self.num_pools, self.pool_size))

    def half_lives(self) -> list[float]:
        """Return for each pool the number of steps after which half of an input's total effect has passed."""
        return half_lives(LinearFilter(self._feedback, self._gain.squeeze(1)))

    def _viewports(self) -> Tensor:
        """Return V_n / s_n [num_pools, pool_size, viewport_size]."""
        if not self.unit_views:
            return self.viewport_weight
        return self.viewport_weight * self._factors.to(self.viewport_weight)

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
        """`unroll` for a CPU: viewports of the inputs, filtered step by step in compiled code (pool_views.py)."""
        pools = (inputs.shape[1], self.num_pools, self.pool_size)
        check("Concrete", inputs, pools=(state.pools, pools), reset=(reset, inputs.shape[:2]))
        size, channels = inputs.shape[-1], self.viewport_bias.numel()
        weight = self.embedding.weight
        cheaper = size * channels > self.pool_size * (size + channels)  # two matrix multiplications instead of one
        if cheaper or bf16.suits(inputs, weight):  # since a step rounds the embedding, too
            inputs, weight = self.embedding(inputs), None
        power = torch.linalg.matrix_power(self._feedback, len(inputs)).to(inputs)
        gains, decays = self._stages.to(inputs)
        filters = Filters(gains, decays, self.in_a_row, power)
        cut = gradient_cuts(reset, bptt_length)
        views, pools = Views.apply(  # pyright: ignore
            filters, reset, cut, inputs, state.pools, weight, self._viewports(), self.viewport_bias
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
    """Parallel pools, the control condition of Concrete: every pool smooths the embedding (figures 1b, 14 and 15).

        p^1_t = u_t + (1 - a_1) p^1_{t-1},   p^n_t = a_n u_t / a_1 + (1 - a_n) p^n_{t-1}   n >= 2, no gradient

    Everything else is as in `Concrete`. The inputs in pool n are base^n - 1 steps old on average; the newest input has
    the largest weight.
    """

    in_a_row = False
