"""Conditions under which a faster form replaces a core's equations, and the precision of cores."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def readable(tensor: Tensor) -> bool:
    """Whether code may read the values of a tensor: on the CPU, outside torch.func, torch.compile and torch.export.
    Elsewhere, reading waits for the device, and operations must not depend on the values: the same operations on the
    same shapes for every batch, which can be recorded once and replayed (CUDA graphs, exports)."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling() and not under_torch_func()


def under_torch_func() -> bool:
    """Whether a transform of torch.func is active."""
    active: Callable[[], bool] | None = getattr(
        torch._C,  # pyright: ignore[reportPrivateUsage]
        "_are_functorch_transforms_active",
        None,
    )
    return active is not None and active()


def in_full_precision(core: nn.Module, call: Callable[..., Any], inputs: Tensor, *rest: Any) -> Any:
    """Run call(inputs, *rest) outside autocast, in the type of the core's weights. A memory that adds up over thousands
    of steps needs float32."""
    if inputs.is_meta or not torch.is_autocast_enabled(inputs.device.type):  # torch has no autocast on meta
        return call(inputs, *rest)
    with torch.autocast(inputs.device.type, enabled=False):
        return call(inputs.to(next(core.parameters(), inputs).dtype), *rest)


def overridden(core: nn.Module) -> bool:
    """Whether a core differs from the class that defines its faster form. This holds under gradients of torch.func
    (those of faster forms need autograd's own engine), for a subclass or an object with another `forward` or
    `initial_state`, and if parts have hooks or parametrizations."""
    return _under_gradient() or _has_another_step(type(core)) or touched(core)


def touched(core: nn.Module) -> bool:
    """Whether hooks or parametrizations of the core's parts, or another method of this object, change it."""
    return not _METHODS.isdisjoint(vars(core)) or any(map(altered, vars(core)["_modules"].values()))


_METHODS = {"forward", "initial_state"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def altered(module: nn.Module | None) -> bool:
    """Whether a module or a part of it has hooks, parametrizations or another method."""
    if module is None:
        return False
    own = vars(module)
    if any(own[hooks] for hooks in _HOOKS) or "forward" in own or "parametrizations" in own["_modules"]:
        return True
    return any(map(altered, own["_modules"].values()))


@functools.cache
def _has_another_step(kind: type) -> bool:
    """Whether a class below the one that defines the faster form overrides the step or the initial state."""
    classes = kind.__mro__
    owner = next(n for n, each in enumerate(classes) if {"fast_route", "unroll_at_once"} & vars(each).keys())
    below = [vars(each) for each in classes[:owner] if "gives_no_resets" not in vars(each)]
    return any("forward" in own or "initial_state" in own for own in below)


def _under_gradient() -> bool:
    """Whether a transform of torch.func other than vmap is active."""
    if not under_torch_func():
        return False
    functorch: Any = torch._C._functorch  # pyright: ignore
    return any(level.key() != functorch.TransformType.Vmap for level in functorch.get_interpreter_stack())
