"""Optimizers by name, clipping by the global gradient norm, and schedules."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from .rmsprop import RMSPropTF, WithoutCompiler

OptimizerName: TypeAlias = Literal["adam", "rmsprop_tf"]
Schedule: TypeAlias = Literal["constant", "linear"]


class Adam(WithoutCompiler, torch.optim.Adam):
    """Torch's Adam (Kingma and Ba 2015)."""

    _step: Any = inspect.unwrap(torch.optim.Adam.step)

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        # The fused kernel reads weights and gradients as flat memory and ignores strides.
        for p in (p for group in self.param_groups for p in group["params"]):
            assert p.grad is None or same_layout(p, p.grad), "gradients must be assigned with set_gradients"
        self._step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state as torch does; moments, contiguous in files, get the memory layout of their parameters."""
        super().load_state_dict(state_dict)
        for p, state in self.state.items():
            state.update({name: _match_layout(p, x) for name, x in state.items() if x.shape == p.shape})


def make_optimizer(
    name: OptimizerName,
    parameters: Iterable[nn.Parameter],
    *,
    lr: float,
    eps: float,
    decay: float,
    momentum: float,
    betas: tuple[float, float],
    recorded: bool = False,
) -> torch.optim.Optimizer:
    """Create an optimizer by name. Only RMSProp uses `decay` and `momentum`, only Adam `betas` (decays of the mean and
    the mean square). `recorded`: whether steps are recorded as part of a CUDA graph."""
    if name == "rmsprop_tf":
        return RMSPropTF(parameters, lr, decay, momentum, eps)
    # The fused kernel makes one pass over memory: 3 to 5 times faster on a CPU than torch's other implementations.
    return Adam(parameters, lr=lr, betas=betas, eps=eps, fused=True, capturable=recorded)


def set_hyperparameters(optimizer: torch.optim.Optimizer, values: Mapping[str, Any]) -> None:
    """Set these values in every parameter group from the next step on; unknown names are ignored."""
    for group in optimizer.param_groups:
        group.update({name: value for name, value in values.items() if name in group})


def same_layout(parameter: Tensor, other: Tensor) -> bool:
    """Whether two tensors of the same shape have the same order of elements in memory."""
    # The stride of a dimension with one element, or of an empty tensor, has no meaning.
    strides = zip(parameter.shape, parameter.stride(), other.stride(), strict=True)
    return parameter.stride() == other.stride() or all(a == b for size, a, b in strides if size > 1)


def _match_layout(parameter: Tensor, other: Tensor) -> Tensor:
    """Return a tensor in the memory layout of a dense parameter of its shape; copy it only if its layout differs."""
    if same_layout(parameter, other):
        return other
    return torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(other)


def set_gradients(parameters: Iterable[nn.Parameter], gradients: Iterable[Tensor | None]) -> None:
    """Assign gradients to parameters, in each one's memory layout and in separate memory, as `backward()` does.
    `torch.autograd.grad` may return another layout, such as channels-last for convolution kernels, and the same memory
    for parameters that are added, such as an LSTM's biases, which in-place clipping would scale twice."""
    taken: set[int] = set()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            gradient = _match_layout(parameter, gradient)
            memory = gradient.data_ptr() - int(gradient.storage_offset()) * gradient.element_size()
            if memory in taken:
                gradient = gradient.clone()
            taken.add(memory)
        parameter.grad = gradient


def clip_global_norm(parameters: Iterable[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale all gradients together so that their joint 2-norm is at most `max_norm`; None disables clipping. Return the
    norm before clipping, a float scalar on the parameters' device; nan or inf if a gradient is."""
    parameters = list(parameters)
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def scheduled(schedule: Schedule, initial: float, step: int, total_steps: int, warmup: int = 0) -> float:
    """Value after `step` environment steps of a setting that starts at `initial`, or rises to it over `warmup` steps.

    constant   initial
    linear     initial * max(0, 1 - step / total_steps)     (Espeholt et al. 2018, table D.1)
    warmup     times min(1, (step + 1) / warmup)
    """
    if warmup:
        initial *= min(1.0, (step + 1) / warmup)
    return initial if schedule == "constant" else initial * max(0.0, 1.0 - step / total_steps)
