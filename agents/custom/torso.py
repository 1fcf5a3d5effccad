"""Custom torsos: `--torso module:Class` or an entry point in the group `engram.torsos`, checked by three calls."""

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...base.errors import EngramError, refuse
from ...base.messages import advice, calling, check_keys
from ...base.registry import Registry
from ..specs import ArraySpec, ObservationSpec
from ..values import ObservationTensor, map_leaves

TORSOS = ("grid", "atari", "atari-resnet", "foveal")
OUTSIDE = (Path(__file__).parents[1], Path(torch.__file__).parent, Path(np.__file__).parent)
"""Folders whose stack frames are not the user's code."""
BATCH = 3


class Torso(nn.Module):
    """Base class of custom torsos: `Class(spec, **torso_args)`.

    A torso sets `output_size` and implements `forward`. It has no state: an output depends only on the
    weights and on one observation, so BatchNorm and dropout are rejected. A torso whose output is a flattened image
    [channels, rows, columns] sets `image` to these three sizes for cores that read images.
    """

    output_size: int

    def forward(self, observation: Any) -> Tensor:
        """Observations [N, *shape] (a dict of them for a Dict space), as returned by the environment -> [N, D]."""
        raise NotImplementedError

    def observe(self, observation: ObservationTensor) -> None:
        """Add observations [N, *shape] to running statistics, which are buffers; called once per batch."""


_REGISTRY = Registry("torso", Torso, dict.fromkeys(TORSOS, ""), None, OUTSIDE)


def check_torso_name(name: str) -> None:
    """Raise EngramError with the nearest names for a torso that is neither registered nor `module:Class`."""
    if ":" not in name and name not in (names := _REGISTRY.names()):
        raise EngramError(f"unknown torso {name!r}; {advice(name, names)} Or module:Class")


def custom_torso(name: str, spec: ObservationSpec, options: dict[str, Any]) -> Torso:
    """Create and check a torso from an entry point or `module:Class`. Raises ValueError naming class and problem."""
    cls = _REGISTRY.find(name)
    check_keys(f"torso {name!r}", "option", options, list(inspect.signature(cls).parameters)[1:])
    arguments = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no options"
    label = f"cannot make torso {name!r} with {arguments}: __init__"
    torso = calling(label, lambda: cls(spec, **options), OUTSIDE, (ValueError,))  # pyright: ignore[reportCallIssue]
    _check(torso, name, spec)
    return torso


def _check(torso: Torso, name: str, spec: ObservationSpec) -> None:
    """Call `forward` twice with three observations and once with one; preserve random number generators."""
    size = getattr(torso, "output_size", None)
    text = f"{name}.output_size is {'not set' if size is None else repr(size)}"
    refuse(type(size) is not int or size < 1, f"{text}; expected a whole number, the width of forward's output")
    weight = next(torso.parameters(), torch.zeros(()))
    if weight.is_meta:
        return
    observations = _observations(spec, torch.Generator().manual_seed(0), weight.device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        first, again, alone = (
            calling(f"{name}.forward", partial(torso, batch), OUTSIDE)
            for batch in (observations, observations, map_leaves(lambda x: x[:1], observations))
        )
    for output, rows in ((first, BATCH), (alone, 1)):
        actual = f"a tensor {list(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        fits = isinstance(output, Tensor) and output.shape == (rows, size)
        refuse(not fits, f"{name}.forward returned {actual}; expected a tensor [{rows}, {size}]: batch, output_size")
    alike = torch.allclose(first[:1], alone, rtol=1e-3, atol=1e-4)
    excluded = {
        f"{first.dtype}; expected floating-point values": not first.is_floating_point(),
        "different values for the same observations; expected a deterministic function": not torch.equal(first, again),
        "different values for an observation outside its batch; expected a function of each observation alone (no "
        "BatchNorm)": not alike,
    }
    for problem, holds in excluded.items():
        refuse(holds, f"{name}.forward returned {problem}")


def _observations(spec: ObservationSpec, generator: torch.Generator, device: torch.device) -> ObservationTensor:
    """Sample BATCH observations: bytes of images, else values in 0..1."""
    if not isinstance(spec, ArraySpec):
        return {key: _observations(part, generator, device) for key, part in spec.items()}
    values = torch.rand(BATCH, *spec.shape, generator=generator)
    return (values if spec.scale == 1.0 else (values * 255).to(torch.uint8)).to(device)
