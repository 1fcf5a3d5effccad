"""Functions compiled by numba, on the memory of torch's tensors, for a CPU.

Small operations of a memory core cost more in starting them, and in bringing their numbers from memory, than in
computing. Compiled loops do many of them in one pass. Elsewhere (on a GPU, under torch.compile, in half precision)
torch's own operations are used.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base.compiled import JIT

Array = NDArray[Any]

enabled = JIT
"""Whether compiled functions are used where they can be."""


def suits(tensor: Tensor) -> bool:
    """Whether compiled functions can work on such a tensor here and now."""
    return (
        enabled
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.float64)
        and not torch.compiler.is_compiling()
    )


def arrays(*tensors: Tensor) -> list[Array]:
    """The same memory as numpy sees it; a tensor with gaps is copied."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]
