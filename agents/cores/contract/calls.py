"""Every call of a core is checked here, once, before any of the core's own code sees the tensors.

Compiled routes take addresses: handed a tensor of another shape or type they would read and write foreign memory. A
call that was found right is remembered by its shapes, types and devices, so that checking the next one like it costs
one look into a set.
"""

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from ..core import Core

Method = Callable[..., Any]

MOST_CALLS = 1000
"""Calls remembered per core: more kinds than any program makes, few enough to hold."""


class Accepted:
    """The calls of one core that were found right; copies and pickles of the core start with none."""

    def __init__(self, core: nn.Module) -> None:
        self.calls: set[Any] = set()
        self.state: Any = None
        """An initial state of one environment, once it was needed."""
        self.owner, self.name = _first_weight(core)

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def remember(self, call: Any) -> None:
        """A call that was found right."""
        if len(self.calls) >= MOST_CALLS:
            self.calls.clear()
        self.calls.add(call)

    @property
    def weight(self) -> Tensor | None:
        """The core's first parameter as it is now: its type and device are those of the inputs."""
        return None if self.owner is None else self.owner.get(self.name)


def checked_step(method: Method) -> Method:
    """`Core.forward` with its arguments checked: ValueError names what was given and what was expected."""

    @functools.wraps(method)
    def forward(self: "Core", inputs: Tensor, state: Any) -> Any:
        if torch.compiler.is_compiling():
            return _in_full_precision(method, method, self, inputs, state)
        if _leaves_autocast(method, inputs):
            return _in_full_precision(method, forward, self, inputs, state)
        check_call(self, "forward", inputs, state)
        return method(self, inputs, state)

    # torch.compile compiles one code object at most eight times in a process: each class has its own.
    forward.__code__ = forward.__code__.replace()  # pyright: ignore[reportAttributeAccessIssue]
    return forward


def checked_unroll(method: Method, owner: type | None = None) -> Method:
    """The `unroll` of class `owner` with its arguments checked: ValueError names what was given and what was expected.

    It stands for the plain loop over the core's steps, and the loop is run where it cannot: under gradients of
    torch.func (faster forms have some that only autograd's own engine knows), for a subclass or an object with
    another `forward` or `initial_state`, and where parts of the core have hooks or parametrizations.
    """

    @functools.wraps(method)
    def unroll(self: "Core", inputs: Tensor, reset: Tensor, state: Any, bptt_length: int | None = None) -> Any:
        if _leaves_autocast(method, inputs):
            return _in_full_precision(method, unroll, self, inputs, reset, state, bptt_length)
        check_call(self, "unroll", inputs, state, reset, bptt_length)
        if _under_gradient() or (owner and _is_another(type(self), owner)) or touched(self):
            return self.loop(inputs, reset, state, bptt_length)
        return method(self, inputs, reset, state, bptt_length)

    return unroll


def check_call(core: "Core", method: str, inputs: Any, state: Any, reset: Any = None, bptt_length: Any = None) -> None:
    """Raise ValueError unless the core's `forward` or `unroll` can be called so."""
    accepted = _accepted(core)
    weight = accepted.weight
    kind = None if weight is None else (weight.dtype, weight.device)
    call = (method, kind, _facts(inputs), _facts(state), _facts(reset), bptt_length)
    if call not in accepted.calls:
        check = _Check(core, method, accepted, inputs)
        check.inputs()
        if method == "unroll":
            check.reset(reset)
        check.state(state)
        if not (bptt_length is None or (isinstance(bptt_length, int) and bptt_length >= 1)):
            raise check.wrong("bptt_length", repr(bptt_length), "None or at least 1 (steps)")
        accepted.remember(call)


def readable(tensor: Tensor) -> bool:
    """Whether code may look at the numbers of a tensor: on the CPU, outside torch.func, torch.compile and torch.export.

    Elsewhere looking means to wait for the device, and what is done must not depend on the numbers: the same
    operations on the same shapes for every batch, which can be recorded once and replayed (CUDA graphs, exports).
    """
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling() and not under_torch_func()


def full_precision(method: Any) -> Any:
    """Run a core's step or unroll outside autocast: a memory that adds up over thousands of steps needs float32."""
    method.full_precision = True
    return method


def touched(core: nn.Module) -> bool:
    """Whether hooks or parametrizations of the core's parts, or another method of this object, change what it does."""
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
def _is_another(kind: type, owner: type) -> bool:
    """Whether a class below `owner` has a step or a first state of its own, which `owner.unroll` does not know."""
    below = [each for each in kind.__mro__[: kind.__mro__.index(owner)] if "gives_no_resets" not in vars(each)]
    return any(not _METHODS.isdisjoint(vars(each)) for each in below)


def under_torch_func() -> bool:
    """Whether a transform of torch.func (grad, vmap, ...) is at work."""
    active: Callable[[], bool] | None = getattr(
        torch._C,  # pyright: ignore[reportPrivateUsage]
        "_are_functorch_transforms_active",
        None,
    )
    return active is not None and active()


def _under_gradient() -> bool:
    """Whether a transform of torch.func other than vmap is at work."""
    if not under_torch_func():
        return False
    functorch: Any = torch._C._functorch  # pyright: ignore
    return any(level.key() != functorch.TransformType.Vmap for level in functorch.get_interpreter_stack())


class _Check:
    """One call, looked at closely."""

    def __init__(self, core: "Core", method: str, accepted: Accepted, inputs: Any) -> None:
        self.core, self.method, self.accepted, self.given = core, method, accepted, inputs

    def wrong(self, what: str, given: str, expected: str) -> ValueError:
        return ValueError(f"{type(self.core).__name__}.{self.method}: {what} is {given}; expected {expected}")

    def inputs(self) -> None:
        x, size = self._tensor("inputs", self.given), getattr(self.core, "input_size", None)
        axes = ("B", "D") if self.method == "forward" else ("T", "B", "D")
        expected = f"[{', '.join([*axes[:-1], str(size or axes[-1])])}]"
        if x.dim() != len(axes) or (size is not None and x.shape[-1] != size):
            raise self.wrong("inputs", str(list(x.shape)), expected)
        for axis, length in zip(axes[:-1], x.shape, strict=False):
            if length == 0:
                raise self.wrong("inputs", str(list(x.shape)), f"{expected} with {axis} of at least 1")
        weight = self.accepted.weight
        if not x.is_floating_point():
            raise self.wrong("inputs", str(x.dtype), "floating-point numbers")
        if weight is not None:
            self._alike("inputs", x, weight.dtype, "as the core's parameters", weight.device)

    def reset(self, reset: Any) -> None:
        if self._tensor("reset", reset).shape != self.given.shape[:2]:
            shape = list(self.given.shape)
            raise self.wrong("reset", str(list(reset.shape)), f"{shape[:2]}, the T and B of inputs {shape}")
        self._alike("reset", reset, torch.bool, "a mask", self.given.device)

    def state(self, state: Any) -> None:
        batch = self.given.shape[-2]
        if self.accepted.state is None:
            self.accepted.state = self.core.initial_state_form()
        expected = self.accepted.state
        if _structure(state) != _structure(expected):
            raise self.wrong("state", _structure(state), _structure(expected))
        for (name, leaf), (_, first) in zip(_leaves(state), _leaves(expected), strict=True):
            shape = [batch, *first.shape[1:]]
            if list(leaf.shape) != shape:
                raise self.wrong(name, str(list(leaf.shape)), f"{shape}, B = {batch} as in inputs")
            dtype = self.given.dtype if first.is_floating_point() else first.dtype
            self._alike(name, leaf, dtype, "as inputs" if dtype == self.given.dtype else "", self.given.device)

    def _tensor(self, what: str, given: Any) -> Tensor:
        if not isinstance(given, Tensor):
            raise self.wrong(what, f"of type {type(given).__name__}", "a tensor")
        return given

    def _alike(self, what: str, tensor: Tensor, dtype: torch.dtype, why: str, device: torch.device) -> None:
        if tensor.dtype != dtype:
            raise self.wrong(what, str(tensor.dtype), f"{dtype} {why}".strip())
        if tensor.device != device:
            raise self.wrong(what, f"on {tensor.device}", f"on {device}")


def _structure(state: Any) -> str:
    """The names of a state's type and fields, nested: the same for equal types of two processes."""
    if isinstance(state, Tensor):
        return "a tensor"
    fields: tuple[str, ...] | None = getattr(state, "_fields", None)
    if fields is None:
        return f"of type {type(state).__name__}"
    parts = zip(fields, state, strict=True)
    names = (name if isinstance(part, Tensor) else f"{name}: {_structure(part)}" for name, part in parts)
    return f"{type(state).__name__}({', '.join(names)})"


def _leaves(state: Any, name: str = "state") -> Iterator[tuple[str, Tensor]]:
    """The leaves of a state and their names, such as `state.controller.h`."""
    if isinstance(state, Tensor):
        yield name, state
    else:
        for field, part in zip(state._fields, state, strict=True):
            yield from _leaves(part, f"{name}.{field}")


def _facts(given: Any) -> Any:
    """All of a tensor or a state that is checked, to be looked up."""
    if isinstance(given, Tensor):
        return given.shape, given.dtype, given.device
    if isinstance(given, tuple):
        return (type(given), *[_facts(part) for part in given])
    return type(given)


def _first_weight(core: nn.Module) -> tuple[dict[str, Tensor | None] | None, str]:
    """Where the core's first floating-point parameter is kept: it may be exchanged (`.double()`, functional_call)."""
    for module in core.modules():
        kept: dict[str, Tensor | None] = vars(module)["_parameters"]
        for name, parameter in kept.items():
            if parameter is not None and parameter.is_floating_point():
                return kept, name
    return None, ""


def _accepted(core: "Core") -> Accepted:
    accepted: Accepted | None = core.__dict__.get("_accepted")
    if accepted is None:
        accepted = core.__dict__["_accepted"] = Accepted(core)
    return accepted


def _leaves_autocast(method: Any, inputs: Any) -> bool:
    if not getattr(method, "full_precision", False) or not isinstance(inputs, Tensor):
        return False
    return not inputs.is_meta and torch.is_autocast_enabled(inputs.device.type)  # torch knows no autocast on meta


def _in_full_precision(marked: Any, method: Method, core: "Core", inputs: Tensor, *args: Any) -> Any:
    """Call `method` outside autocast if `marked` asks for it."""
    if not _leaves_autocast(marked, inputs):
        return method(core, inputs, *args)
    with torch.autocast(inputs.device.type, enabled=False):
        return method(core, inputs.to(next(core.parameters()).dtype), *args)
