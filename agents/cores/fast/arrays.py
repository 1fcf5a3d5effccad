"""The memory of tensors as compiled functions see it."""

from typing import Any

from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


def arrays(*tensors: Tensor) -> list[Array]:
    """The same memory as numpy sees it; a tensor with gaps is copied."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]
