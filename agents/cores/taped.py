"""Layers with hand-written gradients, the parts of a Recurrence.

`forward` saves on the tape what `backward` takes back; `backward` adds to `grads` and returns the gradient of its
input. A layer may be used many times; calls are undone in reverse order.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from ..kernels import add_linear, linear
from .recurrence import Tape


class TapedLayer:
    """A layer with a weight and a bias."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias

    @cached_property
    def grads(self) -> list[Tensor]:
        """Of weight and bias, summed over the calls of `backward` so far."""
        return [torch.zeros_like(self.weight), torch.zeros_like(self.bias)]


class TapedLinear(TapedLayer):
    """y = x W^T + b on rows x [R, in]; with `rectify`, y = relu(x) W^T + b (x is overwritten by relu(x))."""

    def __init__(self, weight: Tensor, bias: Tensor, rectify: bool = False) -> None:
        super().__init__(weight, bias)
        self.rectify = rectify

    def forward(self, x: Tensor, tape: Tape) -> Tensor:
        """[R, in] -> [R, out]."""
        if self.rectify:
            x = x.relu_()
        tape.save(x)
        return linear(x, self.weight, self.bias)

    def backward(self, grad: Tensor, tape: Tape) -> Tensor:
        """[R, out] -> [R, in]."""
        (x,) = tape.take(1)
        self.grads[0] = add_linear(self.grads[0], grad.t(), x.t())
        self.grads[1] += grad.sum(0)
        grad = linear(grad, self.weight.t())
        return torch.ops.aten.threshold_backward(grad, x, 0) if self.rectify else grad


class TapedNorm(TapedLayer):
    """LayerNorm over the last dimension of rows x [R, D] with gain and offset [D]."""

    eps = 1e-5
    """That of `nn.LayerNorm`."""

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
    """A = softmax(q k^T / sqrt(key_size)) v over the rows of each batch element and head."""

    def __init__(self, heads: int, key_size: int) -> None:
        self.heads, self.key_size, self.scale = heads, key_size, key_size**-0.5

    def forward(self, parts: Sequence[Tensor], queries: int, tape: Tape) -> Tensor:
        """Rows in parts [B, r, heads * (2 K + V)] -> [B, queries, heads, V] for the first `queries` rows."""
        # One copy puts the heads in front of the rows; the products then read q, k and v in place.
        by_head = [part.view(*part.shape[:2], self.heads, -1).transpose(1, 2) for part in parts]
        qkv = torch.cat(by_head, 2).flatten(0, 1)
        rows = qkv.shape[1]
        q, k, v = self._slices(qkv, queries)
        scores = torch.bmm(q, k.transpose(1, 2)).mul_(self.scale)
        # Softmax over the first of two long dimensions: over a last dimension of five it takes seven times as long.
        weights = scores.permute(2, 0, 1).reshape(rows, -1).softmax(0)
        tape.save(qkv, weights)
        attended = torch.bmm(weights.view(rows, -1, queries).permute(1, 2, 0), v)
        return attended.view(len(parts[0]), self.heads, queries, -1).transpose(1, 2)

    def backward(self, grad: Tensor, sizes: Sequence[int], tape: Tape) -> list[Tensor]:
        """[B, queries, heads, V] -> of the parts, which had `sizes` rows."""
        qkv, weights = tape.take(2)
        queries, rows = grad.shape[1], qkv.shape[1]
        q, k, v = self._slices(qkv, queries)
        grad = grad.transpose(1, 2).flatten(0, 1)
        grad_weights = torch.bmm(grad, v.transpose(1, 2)).permute(2, 0, 1).reshape(rows, -1)
        grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, 0, weights.dtype)
        grad_scores = grad_scores.mul_(self.scale).view(rows, -1, queries)
        grad_q = torch.bmm(grad_scores.permute(1, 2, 0), k)
        grad_k = torch.bmm(grad_scores.permute(1, 0, 2), q)
        grad_v = torch.bmm(weights.view(rows, -1, queries).permute(1, 0, 2), grad)
        if queries < rows:
            grad_q = functional.pad(grad_q, (0, 0, 0, rows - queries))
        return self._regroup((grad_q, grad_k, grad_v), sizes)

    def _slices(self, qkv: Tensor, queries: int) -> tuple[Tensor, Tensor, Tensor]:
        """The first `queries` of q [B * heads, rows, K], and all of k and v."""
        size = self.key_size
        return qkv[:, :queries, :size], qkv[:, :, size : 2 * size], qkv[:, :, 2 * size :]

    def _regroup(self, grads: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Gradients of q, k and v [B * heads, rows, .] -> of the parts [B, size, heads * (2 K + V)]."""
        by_row = [grad.view(-1, self.heads, *grad.shape[1:]).transpose(1, 2) for grad in grads]
        regrouped: list[Tensor] = []
        start = 0
        for size in sizes:
            regrouped.append(torch.cat([grad[:, start : start + size] for grad in by_row], -1).flatten(2))
            start += size
        return regrouped
