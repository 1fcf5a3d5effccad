"""The learner's device, and its precision on that device."""

import re
from dataclasses import replace

import torch

from ...agents import bf16
from ...base.errors import EngramError, refuse
from ...learners.config import LearnerConfig


def check_device(name: str) -> None:
    """Raise EngramError unless `name` is the name of a device, whether it exists or not."""
    refuse(not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name), f"device is {name!r}; allowed: auto, cpu, cuda, cuda:N")


def find_device(name: str, num_learners: int = 1) -> torch.device:
    """Find the learner's device. Raises EngramError if it does not exist. Several learners use GPUs only if named."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() and num_learners == 1 else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        gpus = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
        why = "torch was built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        available = ", ".join(["cpu", *gpus]) + ("" if gpus else f"; {why}")
        raise EngramError(f"--device {name}: there is no such device; allowed: {available}")
    return device


def on_device(config: LearnerConfig, device: torch.device) -> LearnerConfig:
    """Replace the precision "auto" in a configuration: bf16 on a CPU with instructions for it if a short measurement
    finds it faster, else float32. Raises EngramError for a precision that the device lacks."""
    on_cpu = device.type == "cpu"
    if config.precision == "auto":
        return replace(config, precision="bf16" if on_cpu and bf16.pays() else "float32")
    refuse(on_cpu and config.precision == "tf32", "precision is 'tf32'; allowed on a CPU: auto, float32, bf16")
    if on_cpu and config.precision == "bf16" and not bf16.routine():
        raise EngramError(f"precision is 'bf16'; allowed on this CPU ({bf16.missing()}): auto, float32")
    return config
