"""`learn_initial_state=true`: the initial state is a parameter of the core."""

import functools
from typing import cast

import torch
from torch import Tensor, nn

from .core import Core, CoreState, map_named, map_state, readable, reset_state, unroll_step_by_step

JOINT = "__"  # Joins the names of nested leaves in parameter names
LARGEST = 1e6  # Values beyond this bound are sentinels, such as the logarithm of an empty sum, and stay constant


def learn_initial_state(core: Core, name: str) -> Core:
    """Make the initial state of `core` a parameter, with its current values; return `core`. Integer leaves, such as
    counts of steps, stay constant. Raises ValueError for a core without a state and for a core whose initial state is
    empty."""
    leaves: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        map_named(leaves.setdefault, core.initial_state(1), JOINT)
    names = [path for path, leaf in leaves.items() if path not in core.constant_leaves and _real(leaf)]
    if core.constant_start or not names:
        problem = core.constant_start or "it has no real-valued state"
        raise ValueError(f"learn_initial_state is True, and core {name!r} cannot learn its initial state: {problem}")
    core.learned_state = nn.ParameterDict({_key(path): nn.Parameter(leaves[path][0].clone()) for path in names})
    core.__class__ = _learned_class(type(core))
    return core


class LearnedStart:
    """Mixin for cores with a learned initial state, placed before the core's own class. An unroll is split where any
    environment resets. Pieces contain no resets, so the core's faster routes, which reset to a constant state, remain
    exact."""

    learned_state: nn.ParameterDict

    def initial_state(self, batch_size: int) -> CoreState:
        """Return the learned state for every environment, leaves [batch_size, ...], with gradient."""
        constant: CoreState = super().initial_state(batch_size)  # pyright: ignore

        def start(path: str, leaf: Tensor) -> Tensor:
            key = _key(path)
            if key not in self.learned_state:
                return leaf
            return self.learned_state[key].repeat(batch_size, *[1] * (leaf.dim() - 1))

        return map_named(start, constant, JOINT)

    def unroll(
        self, inputs: Tensor, reset: Tensor, state: CoreState, bptt_length: int | None = None
    ) -> tuple[Tensor, CoreState, Tensor | None]:
        """Run `Core.unroll` in pieces between resets."""
        core = cast(Core, self)
        if not readable(reset):
            return unroll_step_by_step(core, inputs, reset, state, bptt_length)
        resets = reset.any(1).tolist()
        cuts = [t for t in range(len(inputs)) if t == 0 or resets[t] or (bptt_length and t % bptt_length == 0)]
        none = torch.zeros_like(reset)
        initial = core.initial_state(inputs.shape[1])
        outputs, losses = list[Tensor](), list[Tensor]()
        for begin, end in zip(cuts, [*cuts[1:], len(inputs)], strict=True):
            if begin % (bptt_length or len(inputs)) == 0:
                state = core.at_cut(map_state(torch.Tensor.detach, state) if begin else state)
            if resets[begin]:
                state = reset_state(state, initial, reset[begin])
            output, state, loss = super().unroll(inputs[begin:end], none[begin:end], state, None)  # pyright: ignore
            outputs.append(output)
            if loss is not None:
                losses.append(loss)
        return torch.cat(outputs), state, torch.cat(losses) if losses else None


@functools.cache
def _learned_class(kind: type[Core]) -> type[Core]:
    """Derive a class from `kind` with a learned initial state."""
    return type(f"{kind.__name__}WithLearnedStart", (LearnedStart, kind), {"kind": kind})


def _real(leaf: Tensor) -> bool:
    """Whether the values of a leaf [1, ...] can be learned: floating-point values that are not sentinels."""
    return leaf.is_floating_point() and (leaf.is_meta or bool((leaf.abs() < LARGEST).all()))


def _key(path: str) -> str:
    """Return the name of a leaf's parameter; ParameterDict rejects names of its own methods, such as `values`."""
    return f"{path}_" if hasattr(nn.ParameterDict, path) else path
