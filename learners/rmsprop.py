"""RMSProp as in TensorFlow, and torch's base class of optimizers without its compiler."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class WithoutCompiler(torch.optim.Optimizer):
    """Optimizer without torch's wrappers, which only exclude these methods from compilation: their first call imports
    torch's compiler, which delays the start of a run by two seconds."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class RMSPropTF(WithoutCompiler):
    """RMSProp with three properties of TensorFlow's version, which matter at the large epsilons of IMPALA's settings.

        n_t = decay n_{t-1} + (1 - decay) g_t^2,                  n_0 = 1       (torch: 0)
        m_t = momentum m_{t-1} + lr g_t / sqrt(n_t + eps)         lr inside the buffer, eps inside the root
        p_t = p_{t-1} - m_t                                       (torch: both outside)

    (Tieleman and Hinton 2012, lecture 6.5, in the form of TensorFlow 1's `RMSPropOptimizer`.) Since n_0 is 1, the first
    updates are small, as in a warmup of about 1 / (1 - decay) steps. Momentum 0 uses no buffer.
    """

    found_inf: Tensor | None = None
    """Scalar that is 1 to skip a step, as in torch's fused optimizers; None: no step is skipped."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, decay: float, momentum: float, eps: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "decay": decay, "momentum": momentum, "eps": eps})

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                self._update(p, p.grad, group)

    def _update(self, p: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        lr, decay, momentum, eps = group["lr"], group["decay"], group["momentum"], group["eps"]
        state = self.state[p]
        if "mean_square" not in state:
            state["mean_square"] = torch.ones_like(p, memory_format=torch.preserve_format)
        if momentum != 0 and "momentum" not in state:
            state["momentum"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        changed = [p, *state.values()]
        before = [] if self.found_inf is None else [x.clone() for x in changed]
        mean_square: Tensor = state["mean_square"]
        mean_square.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
        root = (mean_square + eps).sqrt_()
        if isinstance(lr, Tensor):  # a value on the device, which every replay of a recorded update reads
            lr, gradient = 1.0, lr * gradient
        if momentum == 0:
            p.addcdiv_(gradient, root, value=-lr)
        else:
            p.sub_(state["momentum"].mul_(momentum).addcdiv_(gradient, root, value=lr))
        for x, old in zip(changed, before, strict=False):
            x.copy_(torch.where(self.found_inf == 0, x, old))
