"""The parts of the relational memory core's step with compiled functions between the products, for a CPU."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import kernels_attention as kernels
from ..native import Array, arrays
from .recurrence import Tape
from .rmc_blocks import Block, Gate, RMCShape
from .taped import TapedLinear


class NativeBlock(Block):
    """See Block."""

    def __init__(self, shape: RMCShape, tensors: Iterator[Tensor], mlp: list[TapedLinear]) -> None:
        super().__init__(shape, tensors, mlp)
        self.heads = shape.heads
        self.norms = [_Norm(norm.weight, norm.bias) for norm in (self.qkv_norm, self.attention_norm, self.mlp_norm)]

    def _attend(self, projected: Tensor, rows: Tensor, queries: int, other: Tensor, tape: Tape) -> Tensor:
        batch, own, width = rows.shape
        weights = rows.new_empty(batch, self.heads, queries, own + other.shape[1])
        normal, out = rows.new_empty(2, batch, queries, width)
        rstd, sum_rstd = rows.new_empty(batch, own), rows.new_empty(batch, queries)
        first, second, _ = self.norms
        norms = (first.gain, first.offset, second.gain, second.offset)
        arguments = (*_numbers(projected, other, rows), *norms, *_numbers(rstd, weights, normal, sum_rstd, out))
        kernels.attend(*arguments)
        tape.save(projected, other, rstd, weights, normal, sum_rstd)
        return out.flatten(0, 1)

    def _attend_backward(self, grad: Tensor, more: Tensor, rows: int, tape: Tape) -> tuple[Tensor, Tensor, Tensor]:
        projected, other, *saved = tape.take(6)
        results = torch.empty_like(grad), torch.empty_like(projected), torch.empty_like(other)
        first, second, _ = self.norms
        before = (*_numbers(grad, more, projected, other), first.gain, first.offset, second.gain)
        arguments = (*before, *_numbers(*saved, *results), *first.grads, *second.grads)
        kernels.attend_backward(*arguments)
        return results

    def _add_norm(self, y: Tensor, z: Tensor, tape: Tape) -> Tensor:
        norm = self.norms[2]
        rstd, out = y.new_empty(len(y)), torch.empty_like(y)
        arguments = (*_numbers(y, z), norm.gain, norm.offset, *_numbers(rstd, out))
        kernels.add_norm(*arguments)
        tape.save(y, rstd)
        return out

    def _add_norm_backward(self, grad: Tensor, tape: Tape) -> Tensor:
        norm, out = self.norms[2], torch.empty_like(grad)
        arguments = (*_numbers(grad, *tape.take(2)), norm.gain, *_numbers(out), *norm.grads)
        kernels.norm_backward(*arguments)
        return out

    @property
    def grads(self) -> list[Tensor]:
        """See Block."""
        return [*self.qkv.grads, *(torch.from_numpy(grad) for norm in self.norms for grad in norm.grads)]


class NativeGate(Gate):
    """See Gate."""

    def _tanh(self, memory: Tensor) -> Tensor:
        out = torch.empty_like(memory)
        kernels.tanh(*_rows(memory, out))
        return out

    def _mix(self, memory: Tensor, candidate: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(memory)
        kernels.mix(*_rows(memory, candidate, gates, out))
        return candidate, out

    def _mix_backward(
        self, grad: Tensor, memory: Tensor, candidate: Tensor, gates: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        results = torch.empty_like(grad), torch.empty_like(grad), torch.empty_like(gates)
        kernels.mix_backward(*_rows(grad, memory, candidate, gates, *results))
        return results

    def _add_through_tanh(self, total: Tensor, grad: Tensor, squashed: Tensor) -> Tensor:
        kernels.add_through_tanh(*_rows(total, grad, squashed))
        return total


class _Norm:
    """A LayerNorm's gain and offset and the sums of their gradients."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.gain, self.offset = arrays(weight, bias)
        self.grads: list[Array] = arrays(torch.zeros_like(weight), torch.zeros_like(bias))


def _numbers(*tensors: Tensor) -> list[Array]:
    """The same memory as numpy sees it, of tensors without gaps and without a graph."""
    return [tensor.numpy() for tensor in tensors]


def _rows(*tensors: Tensor) -> list[Array]:
    """[B, N, F] -> [B N, F]."""
    return [numbers.reshape(-1, numbers.shape[-1]) for numbers in _numbers(*tensors)]
