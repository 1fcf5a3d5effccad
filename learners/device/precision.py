"""Precision of the learner's forward and backward pass; weights, gradients, losses and recurrent sums stay float32."""

import contextlib
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeAlias

import torch

from ...agents import bf16

Precision: TypeAlias = Literal["auto", "float32", "tf32", "bf16"]
"""Precisions; `chosen` replaces auto by one of the others when a run begins."""


def chosen(precision: Precision, device: torch.device) -> Precision:
    """Choose the precision of a run whose learner is on this device. Raises ValueError if the device lacks it. "auto"
    is bf16 on a CPU with instructions for it if a short measurement finds it faster, else float32."""
    if device.type != "cpu":
        return "float32" if precision == "auto" else precision
    if precision == "auto":
        return "bf16" if bf16.pays() else "float32"
    if precision == "tf32":
        raise ValueError("precision is 'tf32'; allowed on a CPU: auto, float32, bf16")
    if precision == "bf16" and not bf16.routine():
        raise ValueError(f"precision is 'bf16'; allowed on this CPU ({bf16.missing()}): auto, float32")
    return precision


@contextlib.contextmanager
def matrix_precision(precision: Precision, device: torch.device) -> Generator[None]:
    """Round the factors of a GPU's matrix multiplications and convolutions to 10 bits, only with tf32. The flags belong
    to the process and a backward pass reads them too: leave the context after computing gradients. By default cuDNN
    rounds the factors of float32 convolutions. The flags are restored at the end."""
    places, name, rounded, exact = _flags()
    value = rounded if precision == "tf32" else exact
    before = [getattr(place, name) for place in places]
    try:
        for place in () if device.type == "cpu" else places:
            setattr(place, name, value)
        yield
    finally:
        for place, old in zip(places, before, strict=True):
            setattr(place, name, old)


def _flags() -> tuple[tuple[Any, ...], str, Any, Any]:
    """The flags' owners, their name, and the values for tf32 and for float32. Since torch 2.9, `allow_tf32` raises
    after `fp32_precision` has been set."""
    backends: Any = torch.backends
    if hasattr(backends.cudnn, "conv"):
        return (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn), "fp32_precision", "tf32", "ieee"
    return (backends.cuda.matmul, backends.cudnn), "allow_tf32", True, False


def lowered(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Compute a forward pass with bf16: on a CPU large multiplications round their factors; on a GPU torso and heads
    use bfloat16, and cores use float32 (`full_precision`)."""
    if device.type == "cpu":
        return bf16.products(precision == "bf16")
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
