"""The relational memory core's unroll by compiled functions, as one node of autograd's graph, for a CPU."""

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from .. import routes
from ..arrays import Array, arrays
from ..blas import gemm
from ..groups import GROUP, GROUP_OF_A_STEP, by_groups, groups, matrix_gradients, turned
from .arrays import Gradients, Inputs, Record, RMCShape, Vectors, Weights, make_gradients, make_record
from .kernels import backward, forward

if TYPE_CHECKING:
    from ...rmc import RMC, RelationalBlock

EPS = 1e-5
"""Of the norms in the compiled functions: that of `nn.LayerNorm` where nothing else is asked for."""


class Tensors(NamedTuple):
    """All that the unroll depends on and that gradients are wanted for; letters as in arrays.py."""

    row: Tensor
    """[T, B, F]: the projected input."""
    gates_input: Tensor
    """[T, B, 2 G]: its share of the gates."""
    memory: Tensor
    """[B, N, F], before the first step."""
    qkv: Tensor
    """[D, F]."""
    mlp: Tensor
    """[L, F, F]."""
    gates: Tensor
    """[2 G, F]: the memory's share of the gates."""
    qkv_bias: Tensor
    qkv_gain: Tensor
    qkv_offset: Tensor
    """[D]."""
    attention_gain: Tensor
    attention_offset: Tensor
    mlp_gain: Tensor
    mlp_offset: Tensor
    """[F]."""
    mlp_bias: Tensor
    """[L, F]."""
    gates_bias: Tensor
    """[2 G]."""


def suits(core: "RMC", inputs: Tensor) -> bool:
    """Whether this route can be used: one block of attention, parts as they were made, a library for products."""
    if len(core.blocks) != 1 or not routes.stands_for(core, inputs) or not gemm(inputs.dtype):
        return False
    norms = [part for part in core.blocks[0].children() if isinstance(part, nn.LayerNorm)]
    return len(norms) == 3 and all(norm.eps == EPS and norm.elementwise_affine for norm in norms)


def run(
    core: "RMC", projected: Tensor, gates: Tensor, memory: Tensor, reset: Tensor | None, bptt_length: int | None
) -> tuple[Tensor, Tensor]:
    """Memories [T, B, N, F] after each step, and the last one.

    Args:
        core: whose parameters and shapes these are.
        projected: input, [T, B, F].
        gates: the input's share of the gates, [T, B, 2 G].
        memory: before the first step, [B, N, F].
        reset, bptt_length: as in `Core.unroll`; None: there is no reset.
    """
    block = cast("RelationalBlock", core.blocks[0])
    shape = RMCShape(core.num_slots, block.num_heads, len(core.mlp), core.gates)
    if reset is None:
        reset = torch.zeros(projected.shape[:2], dtype=torch.bool)
    first, resets = arrays(core.initial_state(1).memory[0], reset)
    layers = cast(list[nn.Linear], list(core.mlp))
    gate = cast(list[nn.Linear], list(core.memory_gates))
    tensors = Tensors(
        row=projected,
        gates_input=gates,
        memory=memory,
        qkv=block.qkv.weight,
        mlp=torch.stack([layer.weight for layer in layers]),
        gates=gate[0].weight if gate else projected.new_empty(0, core.width),
        qkv_bias=block.qkv.bias,
        qkv_gain=block.qkv_norm.weight,
        qkv_offset=block.qkv_norm.bias,
        attention_gain=block.attention_norm.weight,
        attention_offset=block.attention_norm.bias,
        mlp_gain=block.mlp_norm.weight,
        mlp_offset=block.mlp_norm.bias,
        mlp_bias=torch.stack([layer.bias for layer in layers]),
        gates_bias=gate[0].bias if gate else projected.new_empty(0),
    )
    return _Unroll.apply(_Plan(shape, first, resets, bptt_length or 0, torch.is_grad_enabled()), *tensors)  # pyright: ignore


class _Plan(NamedTuple):
    shape: RMCShape
    initial: Array
    reset: Array
    cut: int
    recording: bool


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *leaves: Tensor) -> tuple[Tensor, Tensor]:
        tensors = Tensors(*leaves)
        given, weights = _arguments(plan, tensors)
        (steps, batch), size = plan.reset.shape, len(weights.qkv)
        record = make_record(plan.shape, steps, batch, given, size) if plan.recording else None
        out = tensors.memory.new_empty(steps, *tensors.memory.shape)
        address, numbers = gemm(out.dtype), out.numpy()
        # Products of few rows are faster with the matrices turned, but a step alone is not worth turning them.
        many = steps > 1
        width = GROUP if many else GROUP_OF_A_STEP
        if many:
            weights = weights._replace(qkv=turned(weights.qkv), mlp=turned(weights.mlp), gates=turned(weights.gates))

        def work(_: int, first: int, last: int) -> None:
            own = record or make_record(plan.shape, 1, min(width, batch), given, size)
            forward(address, first, last, given, weights, many, own, numbers)

        by_groups(work, batch, width)
        if plan.recording:
            ctx.plan, ctx.record = plan, record
            ctx.save_for_backward(*tensors)
        return out, out[-1].clone()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        routes.refuse_second_derivative()
        plan, record = ctx.plan, ctx.record
        given, weights = _arguments(plan, Tensors(*ctx.saved_tensors))
        batch = len(given.state)
        grads = make_gradients(given, weights, record, grad_last, groups(batch, GROUP))
        address, above = gemm(grad_out.dtype), grad_out.contiguous().numpy()

        def work(group: int, first: int, last: int) -> None:
            backward(address, group, first, last, plan.cut, given, weights, record, above, grads)

        by_groups(work, batch, GROUP)
        return None, *_named(plan.shape, grads, record)


def _arguments(plan: _Plan, tensors: Tensors) -> tuple[Inputs, Weights]:
    """Weights as compiled functions take them, matrices as they are: [outputs, inputs]."""
    a = Tensors(*arrays(*tensors))  # pyright: ignore[reportArgumentType]
    vectors = Vectors(*(getattr(a, name) for name in Vectors._fields))
    given = Inputs(a.row, a.gates_input, plan.reset, plan.initial, a.memory)  # pyright: ignore[reportArgumentType]
    return given, Weights(a.qkv, a.mlp, a.gates, vectors)  # pyright: ignore[reportArgumentType]


def _named(shape: RMCShape, grads: Gradients, record: Record) -> Tensors:
    """Gradients of all tensors."""
    pairs = [(grads.projected, record.rows), *zip(grads.mlp, record.hidden[:-1], strict=True)]
    if shape.gates:
        pairs.append((grads.gates, record.squashed))
    qkv, *rest = matrix_gradients(pairs)
    sums = Vectors(*(torch.from_numpy(sums.sum(0)) for sums in grads.sums))  # pyright: ignore[reportArgumentType]
    return Tensors(
        row=torch.from_numpy(grads.row),
        gates_input=torch.from_numpy(grads.gates_input),
        memory=torch.from_numpy(grads.state),
        qkv=qkv,
        mlp=torch.stack(rest[: shape.mlp_layers]),
        gates=rest[-1] if shape.gates else qkv.new_empty(0, qkv.shape[1]),
        **sums._asdict(),
    )
