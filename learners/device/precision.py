"""The precision of the learner's pass over a batch; weights, gradients, losses and the memory's sums stay float32."""

import contextlib
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeAlias

import torch

Precision: TypeAlias = Literal["float32", "tf32", "bf16"]


def precision(name: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Compute what is inside the `with` statement so; the process is afterwards as it was.

    tf32: a GPU's products round their factors to 10 bits and add up in float32. bf16: torso and heads in bfloat16,
    by autocast; cores leave it (`full_precision`).
    """
    if name == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return _tf32() if name == "tf32" else contextlib.nullcontext()


@contextlib.contextmanager
def _tf32() -> Generator[None]:
    places: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    for place in places:
        place.allow_tf32 = True
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.allow_tf32 = value
