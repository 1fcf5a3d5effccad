"""Steps of an optimiser that a device decides about by itself."""

import torch
from torch import Tensor

from ...agents.cores.core import readable


def step_if(optimiser: torch.optim.Optimizer, wanted: Tensor) -> None:
    """One step of an optimiser where `wanted` (a bool scalar) is true; else nothing of it or the weights changes.

    On a device without asking for the answer: the step itself is left out there.
    """
    if readable(wanted):
        if bool(wanted):
            optimiser.step()
        return
    optimiser.found_inf = (~wanted).float()  # pyright: ignore[reportAttributeAccessIssue]
    optimiser.step()
