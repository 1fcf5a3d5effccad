"""The relational memory core's unroll by compiled functions, as one node of autograd's graph, for a CPU."""

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..blas import gemm
from ..elementwise import EPS
from ..routes import (
    GROUP,
    GROUP_OF_A_STEP,
    arrays,
    by_groups,
    groups,
    matrix_gradients,
    refuse_second_derivative,
    stands_for,
    turned,
)
from .arrays import VECTORS, Leaves, Record, Resets, make_gradients, make_record
from .kernels import backward, forward

if TYPE_CHECKING:
    from ...rmc import RMC, RelationalBlock


def suits(core: "RMC", inputs: Tensor) -> bool:
    """Whether this route can be used: one block of attention, parts as they were made, a library for products."""
    if len(core.blocks) != 1 or not stands_for(core, inputs) or not gemm(inputs.dtype):
        return False
    norms = [part for part in core.blocks[0].children() if isinstance(part, nn.LayerNorm)]
    return len(norms) == 3 and all(norm.eps == EPS and norm.elementwise_affine for norm in norms)


def run(
    core: "RMC",
    projected: Tensor,
    gates: Tensor,
    places: Tensor,
    memory: Tensor,
    reset: Tensor | None,
    bptt_length: int | None,
) -> tuple[Tensor, Tensor]:
    """Memories [T, B, N, F] after each step, and the last one.

    Args:
        core: whose parameters and shapes these are.
        projected: input, [T, B, F].
        gates: the input's share of the gates, [T, B, 2 G].
        places: keys and values of the image's places, [T, B, P, H (K + V)].
        memory: before the first step, [B, N, F].
        reset, bptt_length: as in `Core.unroll`; None: there is no reset.
    """
    block = cast("RelationalBlock", core.blocks[0])
    if reset is None:
        reset = torch.zeros(projected.shape[:2], dtype=torch.bool)
    layers = cast(list[nn.Linear], list(core.mlp))
    gate = cast(list[nn.Linear], list(core.memory_gates))
    leaves = Leaves(
        row=projected,
        gates_input=gates,
        places=places,
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
    resets = Resets(*arrays(reset, core.initial_state(1).memory[0]))
    return _Unroll.apply(_Plan(block.num_heads, resets, bptt_length or 0, torch.is_grad_enabled()), *leaves)  # pyright: ignore


class _Plan(NamedTuple):
    """How the leaves are gone through."""

    heads: int
    resets: Resets
    cut: int
    """Steps after which gradients are cut; 0: nowhere."""
    recording: bool
    """Whether a backward pass may follow."""


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        leaves = Leaves(*arrays(*tensors))
        (steps, batch), memory = plan.resets.at.shape, Leaves(*tensors).memory
        record = make_record(leaves, plan.heads, steps, batch) if plan.recording else None
        out = memory.new_empty(steps, *memory.shape)
        address, numbers = gemm(out.dtype), out.numpy()
        # Products of few rows are faster with the matrices turned, but a step alone is not worth turning them.
        many = steps > 1
        width = GROUP if many else GROUP_OF_A_STEP
        if many:
            leaves = leaves._replace(qkv=turned(leaves.qkv), mlp=turned(leaves.mlp), gates=turned(leaves.gates))

        def work(_: int, first: int, last: int) -> None:
            own = record or make_record(leaves, plan.heads, 1, min(width, batch))
            forward(address, first, last, plan.resets, leaves, many, own, numbers)

        by_groups(work, batch, width)
        if plan.recording:
            ctx.plan, ctx.record = plan, record
            ctx.save_for_backward(*tensors)
        return out, out[-1].clone()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        refuse_second_derivative()
        plan, record = ctx.plan, ctx.record
        leaves, batch = Leaves(*arrays(*ctx.saved_tensors)), len(grad_last)
        grads = make_gradients(leaves, record, grad_last, groups(batch, GROUP))
        address, above = gemm(grad_out.dtype), grad_out.contiguous().numpy()

        def work(group: int, first: int, last: int) -> None:
            backward(address, group, first, last, plan.cut, plan.resets, leaves, record, above, grads)

        by_groups(work, batch, GROUP)
        return None, *_summed(grads, record)


def _summed(grads: Leaves, record: Record) -> Leaves:
    """Gradients of all leaves."""
    pairs = [(grads.qkv, record.rows), *zip(grads.mlp, record.hidden[:-1], strict=True)]
    if record.gates.size:
        pairs.append((grads.gates, record.squashed))
    qkv, *rest = matrix_gradients(pairs)
    return Leaves(
        row=torch.from_numpy(grads.row),
        gates_input=torch.from_numpy(grads.gates_input),
        places=torch.from_numpy(grads.places),
        memory=torch.from_numpy(grads.memory),
        qkv=qkv,
        mlp=torch.stack(rest[: len(grads.mlp)]),
        gates=rest[-1] if record.gates.size else qkv.new_empty(0, qkv.shape[1]),
        **{name: torch.from_numpy(getattr(grads, name).sum(0)) for name in VECTORS},
    )
