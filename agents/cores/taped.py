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
        self.heads, self.key_size = heads, key_size

    def forward(self, parts: Sequence[Tensor], queries: int, tape: Tape) -> Tensor:
        """Rows in parts [B, r, heads * (2 K + V)] -> [B, queries, heads, V] for the first `queries` rows."""
        # One copy puts the heads in front of the rows; the products then read q, k and v in place.
        qkv = torch.cat([part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts], 2).flatten(0, 1)
        q, k, v = self._slices(qkv)
        q = q[:, :queries]
        scores = torch.baddbmm(q.new_zeros(1, 1, 1), q, k.transpose(1, 2), beta=0, alpha=self.key_size**-0.5)
        # Softmax over the first of two long dimensions: over a last dimension of five it takes seven times as long.
        weights = scores.permute(2, 0, 1).flatten(1).softmax(0).unflatten(1, (-1, queries))
        tape.save(qkv, weights)
        attended = torch.bmm(weights.permute(1, 2, 0), v)
        return attended.unflatten(0, (-1, self.heads)).transpose(1, 2)

    def backward(self, grad: Tensor, sizes: Sequence[int], tape: Tape) -> list[Tensor]:
        """[B, queries, heads, V] -> of the parts, which had `sizes` rows."""
        qkv, weights = tape.take(2)
        queries = grad.shape[1]
        q, k, v = self._slices(qkv)
        q = q[:, :queries]
        grad = grad.transpose(1, 2).flatten(0, 1)
        grad_weights = torch.bmm(grad, v.transpose(1, 2)).permute(2, 0, 1).flatten(1)
        grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights.flatten(1), 0, weights.dtype)
        grad_scores = grad_scores.unflatten(1, (-1, queries))
        nothing, scale = q.new_zeros(1, 1, 1), self.key_size**-0.5
        grad_q = torch.baddbmm(nothing, grad_scores.permute(1, 2, 0), k, beta=0, alpha=scale)
        grad_k = torch.baddbmm(nothing, grad_scores.permute(1, 0, 2), q, beta=0, alpha=scale)
        grad_v = torch.bmm(weights.permute(1, 0, 2), grad)
        if queries < qkv.shape[1]:
            grad_q = functional.pad(grad_q, (0, 0, 0, qkv.shape[1] - queries))
        return self._regroup((grad_q, grad_k, grad_v), sizes)

    def _slices(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv.split([self.key_size, self.key_size, qkv.shape[-1] - 2 * self.key_size], dim=-1)
        return q, k, v

    def _regroup(self, grads: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Gradients of q, k and v [B * heads, rows, .] -> of the parts [B, size, heads * (2 K + V)]."""
        by_row = [grad.unflatten(0, (-1, self.heads)).transpose(1, 2).split(list(sizes), 1) for grad in grads]
        return [torch.cat(part, -1).flatten(2) for part in zip(*by_row, strict=True)]
