"""Contract of memory cores, and the only loop over time, with resets and truncated gradients.

Shapes: B environments, T steps, D input features. A state is a NamedTuple (nested NamedTuples allowed) whose leaves are
tensors [B, ...].
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor, nn

from ...base import compiled

CoreState: TypeAlias = Any  # A NamedTuple of tensors [B, ...]
Unrolled: TypeAlias = tuple[Tensor, CoreState, Tensor | None]  # Results of `Core.unroll`
Route: TypeAlias = Callable[[Tensor, Tensor, CoreState, int | None], Unrolled]  # A form of `Core.unroll`
Step: TypeAlias = Callable[[Tensor, Tensor, CoreState], tuple[Tensor, CoreState]]
"""step(inputs [B, D], reset bool [B], state): `Core.forward` after resets."""


class HiddenState(NamedTuple):
    """h [B, ...]: the state of cores with a single leaf; of complex values [B, ..., 2], the real part is first."""

    h: Tensor


class Axis(NamedTuple):
    """Parts of a state by name: the indices along a dimension of a leaf [B, ...], for interventions."""

    part: str
    leaf: str
    dim: int
    counted_by: str = ""  # Attribute of the core with the number of parts, if a part has several indices


class Core(nn.Module):
    """Base class of memory cores: maps an input and a state to an output and the next state, for a batch of independent
    environments. A core sets `output_size` (and `input_size`) and implements `initial_state` and `forward`."""

    input_size: int
    output_size: int
    loops_over_time = True  # Whether `unroll` computes steps sequentially
    parts_of_state: tuple[Axis, ...] = ()  # Complete leaves are parts in every core
    supervised_lr = 1e-3  # Adam's learning rate on supervised tasks (`rl-probe`)

    def __init__(self, input_size: int | None = None, output_size: int | None = None) -> None:
        super().__init__()
        if input_size is not None and output_size is not None:
            self.input_size, self.output_size = input_size, output_size

    @classmethod
    def image_options(cls, channels: int, rows: int, cols: int) -> dict[str, Any]:
        """Return options for inputs that begin with a flattened image [channels, rows, cols]."""
        return {}

    def initial_state(self, batch_size: int) -> CoreState:
        """Return the state before an episode's first observation: a NamedTuple of float32 leaves [batch_size, ...]."""
        raise NotImplementedError("every core defines initial_state (docs/reference/cores.md)")

    def set_constants(self) -> None:
        """Create full-precision tensors that are not weights, on the weights' device. Constructors call this, and so do
        `.to`, `.bfloat16` and similar methods, which would otherwise round the tensors."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.set_constants()
        return self

    def __call__(self, inputs: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run `forward` with hooks and outside autocast."""
        return in_full_precision(self, super().__call__, inputs, state)

    def forward(self, inputs: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Compute one step: inputs [B, D] and state -> output [B, output_size] and the next state."""
        raise NotImplementedError("every core defines forward (docs/reference/cores.md)")

    def at_cut(self, state: CoreState) -> CoreState:
        """Return the state at step 0 of an unroll and after each cut of the gradient, before resets: the same values,
        with a gradient of its own in real-time recurrent learning."""
        return state

    def auxiliary_loss(self, state: CoreState) -> Tensor | None:
        """Return the core's own loss [B] for the step that resulted in `state`, or None."""
        return None

    def describe(self, state: CoreState) -> dict[str, Tensor]:
        """Return the state as arrays [B, K] by name, for figures and decoders; by default every leaf, flattened."""
        return named_leaves(state)

    def compiles(self, inputs: Tensor) -> bool:
        """Whether `unroll_compiled` is equivalent to this core's own modules for these inputs."""
        return False

    def fast_route(self, inputs: Tensor) -> Route | None:
        """Return a faster form of the loop over steps for these inputs: `unroll_compiled`, `unroll_at_once` or None."""
        route: Route | None = getattr(self, "unroll_compiled", None)
        return route if route and compiled.enabled and self.compiles(inputs) else getattr(self, "unroll_at_once", None)

    def fast_step(self, batch_size: int) -> Step | None:
        """Return a faster form of a step for acting with the current weights, or None."""
        return None

    def acting(self, state: CoreState, batch_size: int) -> Step:
        """Prepare a step for `batch_size` environments with the current weights, to start from `state` in inference
        mode. Each step may overwrite a state that an earlier step returned."""
        initial = self.initial_state(batch_size)
        pairs = zip(state_leaves(state), state_leaves(initial), strict=True)
        usual = all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)
        if usual and not (altered(self) or overridden(self) or torch.is_autocast_enabled("cpu")):
            if (fast := self.fast_step(batch_size)) is not None:
                return fast

        def step(inputs: Tensor, reset: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
            if not readable(reset) or bool(reset.any()):
                state = reset_state(state, initial, reset)
            return self(inputs, state)

        return step

    def unroll(self, inputs: Tensor, reset: Tensor, state: CoreState, bptt_length: int | None = None) -> Unrolled:
        """Run T steps: inputs [T, B, D], reset bool [T, B], state -> outputs [T, B, output_size], last state, and the
        core's own loss [T, B] or None. Where reset[t, b] is set, environment b starts step t from the initial state.
        Every `bptt_length` steps, counted from step 0, the state is detached."""

        def run(inputs: Tensor) -> Unrolled:
            route = None if overridden(self) else self.fast_route(inputs)
            if route is None:
                return unroll_step_by_step(self, inputs, reset, state, bptt_length)
            return route(inputs, reset, state, bptt_length)

        return in_full_precision(self, run, inputs)


class Projected(Core):
    """Core whose `_project` maps the inputs of all steps at once and whose `_step` computes the rest step by step."""

    def _project(self, inputs: Tensor) -> Tensor:
        """Inputs [..., D] -> x [..., any size]."""
        raise NotImplementedError

    def _step(self, x: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """The mapped input x [B, ...] and the state -> output [B, output_size] and the next state."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        return self._step(self._project(inputs), state)

    def unroll_at_once(self, inputs: Tensor, reset: Tensor, state: CoreState, bptt_length: int | None) -> Unrolled:
        return unroll_step_by_step(self, self._project(inputs), reset, state, bptt_length, self._step)


def unroll(
    core: Core, inputs: Tensor, reset: Tensor, state: CoreState, bptt_length: int | None = None
) -> tuple[Tensor, CoreState]:
    """Run `core` over time: inputs [T, B, D], reset bool [T, B] -> outputs [T, B, output_size] and the last state."""
    return core.unroll(inputs, reset, state, bptt_length)[:2]


def unroll_step_by_step(
    core: Core,
    inputs: Tensor,
    reset: Tensor,
    state: CoreState,
    bptt_length: int | None = None,
    step: Callable[[Tensor, CoreState], tuple[Tensor, CoreState]] | None = None,
) -> Unrolled:
    """Plain loop over time that defines `Core.unroll`. `step` may replace `core.forward`, for a core that has computed
    part of its work for all T inputs."""
    step = step or core
    initial = core.initial_state(inputs.shape[1])
    any_reset = reset.any(dim=1).tolist() if readable(reset) else [True] * len(reset)
    outputs, losses = list[Tensor](), list[Tensor]()
    # Use `unbind`, since the gradient of inputs[t] would be as large as all inputs.
    for t, now in enumerate(inputs.unbind()):
        if t % (bptt_length or len(inputs)) == 0:
            state = core.at_cut(map_state(torch.Tensor.detach, state) if t else state)
        if any_reset[t]:
            state = reset_state(state, initial, reset[t])
        output, state = step(now, state)
        outputs.append(output)
        if (loss := core.auxiliary_loss(state)) is not None:
            losses.append(loss)
    return torch.stack(outputs), state, torch.stack(losses) if losses else None


def reset_state(state: CoreState, initial: CoreState, reset: Tensor) -> CoreState:
    """Return `initial` where reset (bool [B]) is set, `state` elsewhere, by selection: 0 * nan is nan."""
    return map_state(lambda old, new: torch.where(reset.reshape(-1, *[1] * (old.dim() - 1)), new, old), state, initial)


def map_state(function: Callable[..., Tensor], *states: CoreState) -> CoreState:
    """Apply `function` leaf by leaf to states of equal structure."""
    if isinstance(states[0], Tensor):
        return function(*states)
    return type(states[0])(*(map_state(function, *leaves) for leaves in zip(*states, strict=True)))


def state_leaves(state: CoreState) -> list[Tensor]:
    """Return the leaves of a state, in order."""
    return [state] if isinstance(state, Tensor) else [leaf for part in state for leaf in state_leaves(part)]


def map_named(function: Callable[[str, Tensor], Tensor], state: CoreState, name: str = "") -> CoreState:
    """Apply function(name, leaf) leaf by leaf; the names of nested fields are joined: `controller.h`."""
    if isinstance(state, Tensor):
        return function(name, state)
    names = (f"{name}.{field}" if name else field for field in state._fields)
    return type(state)(*(map_named(function, part, path) for path, part in zip(names, state, strict=True)))


def named_leaves(state: CoreState) -> dict[str, Tensor]:
    """Return the leaves of a state, flattened to [B, K], by name."""
    leaves: dict[str, Tensor] = {}
    map_named(lambda name, leaf: leaves.setdefault(name, leaf.reshape(len(leaf), -1)), state)
    return leaves


# -- conditions of faster forms, and the precision of cores ------------------------------------------------------------


def readable(tensor: Tensor) -> bool:
    """Whether code may read the values of a tensor: on the CPU, outside torch.func, torch.compile and torch.export.
    Elsewhere, operations are recorded once for all batches (CUDA graphs, exports) and must not depend on values."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling() and not under_torch_func()


def under_torch_func() -> bool:
    """Whether a transform of torch.func is active."""
    return torch._C._are_functorch_transforms_active()  # pyright: ignore


def in_full_precision(core: Core, call: Callable[..., Any], inputs: Tensor, *rest: Any) -> Any:
    """Run call(inputs, *rest) outside autocast, in the weights' type: sums over thousands of steps need float32."""
    if inputs.is_meta or not torch.is_autocast_enabled(inputs.device.type):  # torch has no autocast on meta
        return call(inputs, *rest)
    with torch.autocast(inputs.device.type, enabled=False):
        return call(inputs.to(next(core.parameters(), inputs).dtype), *rest)


def overridden(core: Core) -> bool:
    """Whether a core may differ from the class that defines its faster form, by a subclass, an assigned method, hooks
    or parametrizations, or under gradients of torch.func (faster forms need autograd's own engine)."""
    if under_torch_func():
        functorch: Any = torch._C._functorch  # pyright: ignore
        if any(level.key() != functorch.TransformType.Vmap for level in functorch.get_interpreter_stack()):
            return True
    return _has_another_step(type(core)) or touched(core)


def touched(core: nn.Module) -> bool:
    """Whether hooks or parametrizations of submodules, or methods assigned to this object, change the core."""
    return not _STEP.isdisjoint(vars(core)) or any(map(altered, vars(core)["_modules"].values()))


_STEP = {"forward", "initial_state"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def altered(module: nn.Module | None) -> bool:
    """Whether a module or a submodule has hooks, parametrizations or an assigned `forward`."""
    if module is None:
        return False
    attributes, modules = vars(module), vars(module)["_modules"]
    if any(attributes[name] for name in _HOOKS) or "forward" in attributes or "parametrizations" in modules:
        return True
    return any(map(altered, modules.values()))


@functools.cache
def _has_another_step(kind: type) -> bool:
    """Whether a class outside this package overrides the step or the initial state and defines no faster form."""
    for cls in kind.__mro__:
        if {"fast_route", "unroll_at_once"} & vars(cls).keys() or cls.__module__.startswith(__package__ or ""):
            return False
        if _STEP & vars(cls).keys():
            return True
    return False
