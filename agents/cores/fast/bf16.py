"""Matrix multiplications with bfloat16 factors and float32 sums, on CPUs with instructions for them.

The routine is oneDNN's `brgemm`, which torch exports for its own kernels. It is as fast for 8 rows as for thousands, so
the compiled loops of the cores use it at every step. Whether factors are rounded depends only on the weights, so actor
and learner compute the same function.
"""

import functools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ....base.compiled import enabled
from ..core import under_torch_func
from .brgemm import multiply, packed, routine

MIN_WEIGHTS, MIN_SIDE = 2**14, 16  # Smaller matrices stay float32: rounding and a call cost more than they save.


class _Local(threading.local):
    on = False


_local = _Local()
_cache: Any = WeakTensorKeyDictionary()  # Packed and stacked weights of acting networks: function -> versions, result


@contextmanager
def products(on: bool = True) -> Generator[None]:
    """Set whether this thread's large multiplications and their gradients round factors to bfloat16."""
    before, _local.on = _local.on, on
    try:
        yield
    finally:
        _local.on = before


def as_learned(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method of an agent to run inside `products` if the agent's `rounded` is set."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        if not self.rounded or torch.compiler.is_compiling():
            return method(self, *args, **options)
        with products():
            return method(self, *args, **options)

    return call if enabled else method


def active() -> bool:
    """Whether this thread is inside `products` and the CPU supports bfloat16."""
    return _local.on and routine() != 0


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether x [..., I] weight^T, with weight [J, I], now uses bfloat16 factors, for any number of rows of x."""
    return (
        not torch.compiler.is_compiling()
        and _local.on
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and large(weight)
        and not torch.is_autocast_enabled("cpu")
        and not under_torch_func()
        and routine() != 0
    )


def large(weight: Tensor) -> bool:
    return weight.numel() >= MIN_WEIGHTS and min(weight.shape) >= MIN_SIDE


def once(make: Callable[..., Tensor], *weights: Tensor) -> Tensor:
    """Return make(*weights), computed once per version of the weights while the network acts."""
    views = any(weight.is_inference() or weight._base is not None for weight in weights)  # pyright: ignore
    if views or not torch.is_inference_mode_enabled():
        return make(*weights)
    versions = [weight._version for weight in weights]  # pyright: ignore
    results = _cache.setdefault(weights[0], {})
    if make not in results or results[make][0] != versions:
        with torch.inference_mode(False), torch.no_grad():  # so that the result has a version, too
            results[make] = versions, make(*weights)
    return results[make][1]


def stacked(*weights: Tensor) -> Tensor:
    """Stack weights [...] to [N, ...], in a function with an identity for `once`."""
    return torch.stack(weights)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [R, I], weight [J, I], bias [J] -> x weight^T + bias [R, J]; no gradient."""
    return multiply(routine(), x, once(packed, weight), bias)
