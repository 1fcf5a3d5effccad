"""The precision of the learner's pass over a batch; weights, gradients, losses and the memory's sums stay float32."""

import contextlib
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch


def lowered(precision: Literal["tf32", "bf16"], device: torch.device) -> AbstractContextManager[Any]:
    """Compute what is inside the `with` statement so; the process is afterwards as it was.

    tf32: a GPU's products round their factors to 10 bits and add up in float32. bf16: torso and heads in bfloat16,
    by autocast; cores leave it (`full_precision`).
    """
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else _tf32()


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
