"""Functions compiled by numba, on the memory of torch's tensors, for a CPU.

Small operations of a memory core cost more in starting them, and in bringing their numbers from memory, than in
computing. Compiled loops do many of them in one pass. Elsewhere (on a GPU, under torch.compile, in half precision)
torch's own operations are used.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

enabled = True
"""Whether compiled functions are used where they can be."""


def compiled(*fastmath: str, inline: bool = False) -> Callable[[Function], Function]:
    """Compile with numba, kept on disk where that is possible; a * b + c may be rounded once instead of twice.

    `fastmath` names what else may be changed about a sum: with "reassoc" and "nsz" its order, so that the processor
    adds several numbers at once. A function that others call must be `inline`: called, it would be optimised one way
    in the process that compiles it and another way in those that find it on disk, and round differently. What is on
    disk is renewed when a file with the same first word, or one with parts for all, changes.
    """
    options: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", *fastmath}, "nogil": True}
    if inline:
        options["inline"] = "always"

    def decorate(function: Function) -> Function:
        try:
            made: Any = njit(cache=True, **options)(function)
        except RuntimeError:  # nowhere to write
            return njit(**options)(function)  # pyright: ignore[reportReturnType]
        made._cache._cache_file._source_stamp = _stamp(function)
        return made

    return decorate


def _stamp(function: Callable[..., Any]) -> tuple[tuple[str, float, int], ...]:
    """Name, time and size of every file that `function` may be compiled from; numba itself looks at its own only."""
    here, source = Path(__file__).parent, Path(function.__code__.co_filename)
    own = source.parent.glob(f"{source.stem.split('_')[0]}*.py")
    files = {*own, here / "native.py", here / "blas.py", *here.glob("kernels_*.py")}
    return tuple((file.name, file.stat().st_mtime, file.stat().st_size) for file in sorted(files))


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
