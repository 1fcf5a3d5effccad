"""Layers with hand-written gradients, the parts of a Recurrence.

`forward` saves on the tape what `backward` takes back; `backward` adds to `grads` and returns the gradient of its
input. A layer may be used many times; calls are undone in reverse order.
"""

import torch
from torch import Tensor

from ..aside import Later, aside
from ..kernels import add_linear, linear
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
        return linear(x, self.weight, self.bias)

    def backward(self, grad: Tensor, tape: Tape) -> Tensor:
        """[R, out] -> [R, in]."""
        (x,) = tape.take(1)
        self._waiting.append((grad, x))
        if len(self._waiting) * len(x) >= ROWS_AT_ONCE:
            self._add_up()
        grad = linear(grad, self.weight.t())
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
        return [linear(grad.t(), x.t()), grad.sum(0)]
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
    """A = softmax(q k^T / sqrt(K)) v among the r rows of each batch element and head; N counts these pairs.

    Rows come first in memory, so that the products read q, k and v in place.
    """

    def __init__(self, key_size: int) -> None:
        self.key_size, self.scale = key_size, key_size**-0.5

    def forward(self, qkv: Tensor, queries: int, tape: Tape) -> Tensor:
        """[r, N, 2 K + V] -> [queries, N, V] for the first `queries` rows."""
        rows, pairs, _ = qkv.shape
        q, k, v = self._slices(qkv, queries)
        # Softmax over the first of two long dimensions: over a last dimension of five it takes seven times as long.
        scores = torch.bmm(k, q.transpose(1, 2)).mul_(self.scale).transpose(0, 1).reshape(rows, -1)
        weights = scores.softmax(0).view(rows, pairs, queries)
        tape.save(qkv, weights)
        return torch.bmm(weights.permute(1, 2, 0), v).transpose(0, 1)

    def backward(self, grad: Tensor, tape: Tape) -> Tensor:
        """[queries, N, V] -> [r, N, 2 K + V]."""
        qkv, weights = tape.take(2)
        rows, queries = len(qkv), len(grad)
        q, k, v = self._slices(qkv, queries)
        by_pair = grad.transpose(0, 1)
        grad_weights = torch.bmm(v, by_pair.transpose(1, 2)).transpose(0, 1).reshape(rows, -1)
        grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights.view(rows, -1), 0, weights.dtype)
        grad_scores = grad_scores.mul_(self.scale).view(weights.shape)
        grad_qkv = torch.empty_like(qkv)
        # Products into fresh tensors and copies: a product into a slice takes torch's slowest path.
        grad_q, grad_k, grad_v = self._slices(grad_qkv, queries)
        grad_q.copy_(torch.bmm(grad_scores.permute(1, 2, 0), k))
        grad_k.copy_(torch.bmm(grad_scores.transpose(0, 1), q))
        grad_v.copy_(torch.bmm(weights.transpose(0, 1), by_pair))
        if queries < rows:
            grad_qkv[queries:, :, : self.key_size] = 0
        return grad_qkv

    def _slices(self, qkv: Tensor, queries: int) -> tuple[Tensor, Tensor, Tensor]:
        """The first `queries` of q [N, r, K], and all of k and v, as views."""
        size, by_pair = self.key_size, qkv.transpose(0, 1)
        return by_pair[:, :queries, :size], by_pair[:, :, size : 2 * size], by_pair[:, :, 2 * size :]
