"""Metalearned Neural Memory (Munkhdalai et al. 2019): a network that is rewritten at every step."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..kernels import Affine, Linear, linear
from .core import Core, Step, Unrolled, unroll_step_by_step
from .fast.elementwise import EPS
from .fast.mnm import unroll as fast
from .fast.routes import stands_for
from .lstm import LSTM, LSTMState


class MemoryWeights(NamedTuple):
    m1: Tensor  # [B, d, d]: outputs by inputs
    m2: Tensor
    m3: Tensor


class MNMState(NamedTuple):
    controller: LSTMState
    read: Tensor  # v^r [B, d]
    memory: MemoryWeights
    meta_error: Tensor  # [B]


class MomentumState(NamedTuple):
    controller: LSTMState
    read: Tensor
    memory: MemoryWeights
    meta_error: Tensor
    momentum: MemoryWeights  # the last change of the memory


AnyState = MNMState | MomentumState


class MNM(Core):
    """An LSTM with a three-layer network as its memory, rewritten at every step; d = memory_size, H = num_heads.

        h_t = LSTM([x_t ; v^r_{t-1}], h_{t-1})                                              (section 3.1)
        [beta' ; per head k^w, v^w, k^r] = tanh(W_v h_t + b_v)                              (equation 1)
        beta = sigmoid(w_beta beta' + b_beta)
        f(k) = M3 tanh(M2 tanh(M1 k))                                                       (section 3.2)
        write: M^l <- M^l - beta s sum_heads D^l (z^{l-1})^T,  z^l = layer l of f(k^w)      (equations 3, 4)
        read:  v^r_t = mean over heads of f(k^r), with the new M
        output = W_y [h_t ; v^r_t] + b_y                                                    (section 3.1)
        meta error = mean over heads and d of (f(k^w) - v^w)^2, with the new M              (equation 5)

    MNMp and MNMg differ in D^l. The meta error is the core's `auxiliary_loss`; its gradient and the task's
    pass through every write of the unroll, including the write's k^w and v^w.

    The paper and the released code (of which only ports survive) disagree; the choices here are:
    - s = 2 / (H d), and errors are means over d, as in the code (App. C: means; equations 2, 4 and 5: sums, no s): with
      keys from tanh, sums make a step with beta near 1 overshoot by a factor of d.
    - As in the code, the output layer of f has no tanh (section 3.2: hidden layers have), and all layers have one rate
      (equation 4 allows one per layer).
    - `layer_norm=True`, an option of the code: layer normalization over all (3 H + 1) d values in place of equation 1's
      tanh, with which initial writes change almost nothing; binding is learned many times faster.
    - M starts at fixed random matrices, U(+-1/sqrt(d)), that are saved but not trained (section 3.5). f has no biases.

    `memory_span`: see LSTM.
    """

    local = False  # Whether updates are learned and local, as in MNMp

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 200,
        memory_size: int = 100,
        num_heads: int = 3,
        memory_span: int = 0,
        layer_norm: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.memory_size, self.num_heads = memory_size, num_heads
        factor = 1 / (num_heads * memory_size)
        self.scales = (2 * factor, factor)  # s, and the meta error's factor: a mean over heads and d
        self.controller = LSTM(input_size + memory_size, hidden_size, memory_span)
        self.interaction = Linear(hidden_size, (3 * num_heads + 1) * memory_size)
        self.norm = nn.LayerNorm((3 * num_heads + 1) * memory_size) if layer_norm else None
        self.rate = nn.Linear(memory_size, 1)
        self.out = Linear(hidden_size + memory_size, hidden_size)
        bound = memory_size**-0.5
        self.initial_memory: Tensor
        self.register_buffer("initial_memory", torch.empty(3, memory_size, memory_size).uniform_(-bound, bound))
        self.targets = Linear(memory_size, 3 * memory_size) if self.local else None

    def initial_state(self, batch_size: int) -> AnyState:
        zeros = self.initial_memory.new_zeros(batch_size, self.memory_size)
        layers = (layer.repeat(batch_size, 1, 1) for layer in self.initial_memory)
        return MNMState(self.controller.initial_state(batch_size), zeros, MemoryWeights(*layers), zeros[:, 0].clone())

    def auxiliary_loss(self, state: AnyState) -> Tensor:
        return state.meta_error

    def forward(self, inputs: Tensor, state: AnyState) -> tuple[Tensor, AnyState]:
        joined, state = self._step(inputs, state)
        return self.out(joined), state

    def compiles(self, inputs: Tensor) -> bool:
        usual = self.norm is None or self.norm.eps == EPS
        carries = self._modules.get("carry") is not None
        return usual and not carries and type(self) in (MNMp, MNMg) and stands_for(self, inputs)

    def unroll_compiled(self, inputs: Tensor, reset: Tensor, state: MNMState, bptt_length: int | None) -> Unrolled:
        cell = self.controller.cell
        gates = linear(inputs, cell.weight_ih[:, : self.input_size], cell.bias_ih + cell.bias_hh)
        leaves = self._tensors(gates, state)
        run = fast.run(leaves, reset, self.initial_memory, self.scales, self.num_heads, bptt_length)
        h, read = run.joined[-1].split([self.output_size, self.memory_size], 1)
        state = MNMState(LSTMState(h, run.c), read, MemoryWeights(*run.memory.unbind(1)), run.errors[-1])
        return self.out(run.joined), state, run.errors

    def _tensors(self, gates: Tensor, state: AnyState) -> fast.Leaves:
        """Collect the inputs of the compiled route; `gates` is the inputs' part of the controller's gates."""
        cell, none, targets = self.controller.cell, gates.new_empty(0), self.targets
        return fast.Leaves(
            gates=gates,
            h=state.controller.h,
            c=state.controller.c,
            read=state.read,
            memory=torch.stack(list(state.memory), 1),
            recurrent=torch.cat([cell.weight_hh, cell.weight_ih[:, self.input_size :]], 1),
            heads=self.interaction.weight,
            targets=targets.weight if targets else none.view(0, self.memory_size),
            heads_bias=self.interaction.bias,
            rate=self.rate.weight[0],
            rate_bias=self.rate.bias,
            targets_bias=targets.bias if targets else none,
            norm_gain=self.norm.weight if self.norm else none,
            norm_bias=self.norm.bias if self.norm else none,
        )

    def fast_step(self, batch_size: int) -> Step | None:
        cell, size = self.controller.cell, self.input_size
        if not self.compiles(self.initial_memory):
            return None
        state = self.initial_state(batch_size)
        tensors = self._tensors(cell.weight_hh.new_empty(1, batch_size, 4 * self.output_size), state)
        run = fast.prepare(tensors, self.initial_memory, self.scales, self.num_heads)
        gates = Affine(cell.weight_ih[:, :size], cell.bias_ih + cell.bias_hh)
        out = Affine(self.out.weight, self.out.bias)
        memory, last = tensors.memory, state.memory  # the latter are views of the former

        def step(inputs: Tensor, reset: Tensor, state: MNMState) -> tuple[Tensor, MNMState]:
            nonlocal last
            if state.memory is not last:
                torch.stack(list(state.memory), 1, out=memory)
                last = MemoryWeights(*memory.unbind(1))
            joined, c, errors = run(gates(inputs.numpy()), *state.controller, state.read, reset.numpy())
            h, read = joined.split([self.output_size, self.memory_size], 1)
            return torch.from_numpy(out(joined.numpy())), MNMState(LSTMState(h, c), read, last, errors)

        return step

    def unroll_at_once(self, inputs: Tensor, reset: Tensor, state: MNMState, bptt_length: int | None) -> Unrolled:
        joined, state, errors = unroll_step_by_step(self, inputs, reset, state, bptt_length, self._step)
        return self.out(joined), state, errors

    def _step(self, inputs: Tensor, state: AnyState) -> tuple[Tensor, AnyState]:
        """inputs [B, input_size] -> [h ; v^r] [B, hidden_size + d], next state."""
        _, controller = self.controller(torch.cat([inputs, state.read], 1), state.controller)
        rate, write_key, value, read_key = self.heads(controller.h)
        # M^l <- M^l - beta s sum_heads D^l (z^{l-1})^T
        layers, step = recall(state.memory, write_key), (rate * self.scales[0]).unsqueeze(2)
        updates = zip(state.memory, self._updates(state.memory, layers, value), layers, strict=False)
        written = MemoryWeights(*(torch.baddbmm(m, (step * d).mT, z, alpha=-1) for m, d, z in updates))
        memory, *momentum = self._carry_over(controller.h, state, written)
        # One pass through the new memory computes the read and the meta error.
        recalled, values = recall(memory, torch.cat([write_key, read_key], 1))[-1].chunk(2, 1)
        error = (recalled - value).square().sum((1, 2)) * self.scales[1]
        read = values.mean(1)
        after = controller, read, memory, error
        return torch.cat([controller.h, read], 1), MomentumState(*after, *momentum) if momentum else MNMState(*after)

    def _carry_over(self, hidden: Tensor, state: Any, written: MemoryWeights) -> tuple[MemoryWeights, ...]:
        """Return the memory after a step, and the momentum, if any; `written` is the memory after the write alone."""
        return (written,)

    def heads(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """h [B, hidden_size] -> beta [B, 1], and k^w, v^w, k^r [B, H, d]  (equation 1)."""
        interaction = self.interaction(hidden)
        interaction = torch.tanh(interaction) if self.norm is None else self.norm(interaction)
        rate, heads = interaction.split([self.memory_size, 3 * self.num_heads * self.memory_size], dim=1)
        write_key, value, read_key = heads.unflatten(1, (self.num_heads, 3, self.memory_size)).unbind(2)
        return torch.sigmoid(self.rate(rate)), write_key, value, read_key

    def _updates(self, memory: MemoryWeights, layers: list[Tensor], value: Tensor) -> list[Tensor]:
        """Return D^1 .. D^3 [B, H, d] from z^0 .. z^3 and v^w [B, H, d]."""
        raise NotImplementedError


class MNMp(MNM):
    """Metalearned neural memory with learned local updates (equation 4).
    D^l = z^l - q^l(v^w), with one linear layer q for all three."""

    local = True

    def _updates(self, memory: MemoryWeights, layers: list[Tensor], value: Tensor) -> list[Tensor]:
        assert self.targets is not None
        targets = self.targets(value).chunk(3, dim=2)
        return [z - target for z, target in zip(layers[1:], targets, strict=True)]


class MNMg(MNM):
    """Metalearned neural memory with one gradient step on the squared error of f(k^w) (equations 2 and 3).

        D^3 = z^3 - v^w,   D^{l-1} = (1 - (z^{l-1})^2) * (M^l)^T D^l        with k^w and v^w fixed

    `momentum` and `decay` are those of Behrouz, Zhong and Mirrokni 2025, "Titans: Learning to Memorize at Test Time",
    section 3.1, where the gradient step above, W_t, has momentum and the memory decays:

        S^l_t = eta S^l_{t-1} + W^l_t,   M^l_t = (1 - alpha) M^l_{t-1} + S^l_t
        [eta ; alpha] = sigmoid(W_c h_t + b_c), for the options in use; otherwise eta = 0, alpha = 0

    In the paper, both depend on the input through an unspecified layer. alpha's bias starts at -4, since the initial
    matrices decay, too. S_0 = 0. The compiled route supports neither option.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 200,
        memory_size: int = 100,
        num_heads: int = 3,
        memory_span: int = 0,
        layer_norm: bool = False,
        momentum: bool = False,
        decay: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, memory_size, num_heads, memory_span, layer_norm)
        self.momentum, self.decay = momentum, decay
        self.carry = nn.Linear(hidden_size, momentum + decay) if momentum or decay else None
        if self.carry is not None and decay:
            with torch.no_grad():
                self.carry.bias[-1] = -4.0

    def initial_state(self, batch_size: int) -> AnyState:
        state = super().initial_state(batch_size)
        zeros = MemoryWeights(*map(torch.zeros_like, state.memory))
        return MomentumState(*state[:4], zeros) if self.momentum else state

    def _carry_over(self, hidden: Tensor, state: AnyState, written: MemoryWeights) -> tuple[MemoryWeights, ...]:
        if self.carry is None:
            return (written,)
        gates = torch.sigmoid(self.carry(hidden)).unsqueeze(2).unbind(1)  # [B, 1] each
        change = [new - old for new, old in zip(written, state.memory, strict=True)]
        if isinstance(state, MomentumState):
            eta = gates[0].unsqueeze(2)
            change = [torch.addcmul(step, eta, past) for step, past in zip(change, state.momentum, strict=True)]
        retained = 1 - gates[-1].unsqueeze(2) if self.decay else 1.0
        memory = MemoryWeights(*(retained * old + step for old, step in zip(state.memory, change, strict=True)))
        return (memory, MemoryWeights(*change)) if self.momentum else (memory,)

    def _updates(self, memory: MemoryWeights, layers: list[Tensor], value: Tensor) -> list[Tensor]:
        _, z1, z2, z3 = layers
        third = z3 - value
        second = torch.bmm(third, memory.m3) * (1 - z2.square())
        first = torch.bmm(second, memory.m2) * (1 - z1.square())
        return [first, second, third]


def recall(memory: MemoryWeights, keys: Tensor) -> list[Tensor]:
    """Return z^0 = keys [B, K, d], z^1, z^2 (tanh) and z^3 (linear) of the memory network."""
    z1 = torch.tanh(torch.bmm(keys, memory.m1.mT))
    z2 = torch.tanh(torch.bmm(z1, memory.m2.mT))
    return [keys, z1, z2, torch.bmm(z2, memory.m3.mT)]
