"""Layers with hand-written gradients, the parts of a Recurrence.

`forward` saves on the tape what `backward` takes back; `backward` adds to `grads` and returns the gradient of its
input. A layer may be used many times; calls are undone in reverse order.
"""

import torch
from torch import Tensor

from ..aside import Later, aside
from ..kernels import add_linear, product
from .recurrence import Tape

ROWS_AT_ONCE = 512
"""Rows that a weight's gradient is made of at once: a product per step would be bound by reading and writing the
gradient itself, one for all steps by the memory that their rows take."""


class TapedLinear:
    """y = x W^T + b on rows x [R, in]; with `rectify`, y = relu(x) W^T + b (x is overwritten by relu(x))."""

    def __init__(self, weight: Tensor, bias: Tensor, rectify: bool = False) -> None:
        self.weight, self.bias, self.rectify = weight, bias, rectify
        self._sums: Later[list[Tensor]] | None = None
        self._waiting: list[tuple[Tensor, Tensor]] = []
        """(gradient of the output, input) of calls that `_sums` does not hold yet."""

    def forward(self, x: Tensor, tape: Tape) -> Tensor:
        """[R, in] -> [R, out]."""
        if self.rectify:
            x = x.relu_()
        tape.save(x)
        return product(x, self.weight, self.bias)

    def backward(self, grad: Tensor, tape: Tape) -> Tensor:
        """[R, out] -> [R, in]."""
        (x,) = tape.take(1)
        self._waiting.append((grad, x))
        if len(self._waiting) * len(x) >= ROWS_AT_ONCE:
            self._add_up()
        grad = product(grad, self.weight.t())
        return torch.ops.aten.threshold_backward(grad, x, 0) if self.rectify else grad

    @property
    def grads(self) -> list[Tensor]:
        """Of weight and bias, summed over the calls of `backward` so far."""
        if self._waiting:
            self._add_up()
        return self._sums.result() if self._sums else [torch.zeros_like(self.weight), torch.zeros_like(self.bias)]

    def _add_up(self) -> None:
        self._sums = aside(_added, self._sums, self._waiting)
        self._waiting = []


def _added(sums: Later[list[Tensor]] | None, calls: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Gradients of weight and bias with those of more calls (gradient of the output, input) added."""
    grad, x = (rows[0] if len(rows) == 1 else torch.cat(rows) for rows in zip(*calls, strict=True))
    if sums is None:
        return [product(grad.t(), x.t()), grad.sum(0)]
    weight, bias = sums.result()
    return [add_linear(weight, grad.t(), x.t()), bias.add_(grad.sum(0))]


class TapedNorm:
    """LayerNorm over the last dimension of rows x [R, D] with gain and offset [D]."""

    eps = 1e-5
    """That of `nn.LayerNorm`."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias
        self._grads: list[Tensor] | None = None

    @property
    def grads(self) -> list[Tensor]:
        """Of gain and offset, summed over the calls of `backward` so far."""
        if self._grads is None:
            self._grads = [torch.zeros_like(self.weight), torch.zeros_like(self.bias)]
        return self._grads

    def forward(self, x: Tensor, tape: Tape) -> Tensor:
        """[R, D] -> [R, D]."""
        y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
        tape.save(x, mean, rstd)
        return y

    def backward(self, grad: Tensor, tape: Tape) -> Tensor:
        """[R, D] -> [R, D]."""
        x, mean, rstd = tape.take(3)
        grad, *terms = torch.ops.aten.native_layer_norm_backward(
            grad, x, x.shape[-1:], mean, rstd, self.weight, self.bias, [True, True, True]
        )
        for total, term in zip(self.grads, terms, strict=True):
            total.add_(term)
        return grad


class TapedAttention:
    """A = softmax(q k^T / sqrt(K)) v among the r rows of each batch element, per head."""

    def __init__(self, heads: int, key_size: int) -> None:
        self.heads, self.key_size, self.scale = heads, key_size, key_size**-0.5

    def forward(self, qkv: Tensor, queries: int, tape: Tape) -> Tensor:
        """[B, r, H (2 K + V)] -> [B, queries, H V] for the first `queries` rows."""
        q, k, v = self._by_head(qkv)
        weights = (q[:, :, :queries] @ k.transpose(2, 3)).mul_(self.scale).softmax(-1)
        tape.save(qkv, weights)
        return (weights @ v).transpose(1, 2).flatten(2)

    def backward(self, grad: Tensor, tape: Tape) -> Tensor:
        """[B, queries, H V] -> [B, r, H (2 K + V)]."""
        qkv, weights = tape.take(2)
        queries = grad.shape[1]
        q, k, v = self._by_head(qkv)
        by_head = grad.unflatten(2, (self.heads, -1)).transpose(1, 2)
        grad_weights = by_head @ v.transpose(2, 3)
        grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype).mul_(self.scale)
        grad_qkv = torch.zeros_like(qkv)
        grad_q, grad_k, grad_v = self._by_head(grad_qkv)
        grad_q[:, :, :queries] = grad_scores @ k
        grad_k.copy_(grad_scores.transpose(2, 3) @ q[:, :, :queries])
        grad_v.copy_(weights.transpose(2, 3) @ by_head)
        return grad_qkv

    def _by_head(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """q, k, v [B, H, r, .] as views."""
        parts = qkv.unflatten(2, (self.heads, -1)).transpose(1, 2)
        return parts.split([self.key_size, self.key_size, parts.shape[3] - 2 * self.key_size], 3)
