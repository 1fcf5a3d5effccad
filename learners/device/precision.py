"""Precision of the learner's forward and backward pass; weights, gradients, losses and recurrent sums stay float32."""

import contextlib
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeAlias

import torch

from ...agents import bf16
from ...agents.process import round_factors

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
    """Round the factors of a GPU's matrix multiplications and convolutions to 10 bits, only with tf32.

    A backward pass reads the process's flags too: leave the context after computing gradients.
    """
    if device.type == "cpu":
        yield
        return
    restore = round_factors(precision == "tf32")
    try:
        yield
    finally:
        restore()


def lowered(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Compute a forward pass with bf16: on a CPU large multiplications round their factors; on a GPU torso and heads
    use bfloat16, and cores use float32 (`full_precision`)."""
    if device.type == "cpu":
        return bf16.products(precision == "bf16")
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
