"""Custom torsos: `--torso module:Class` or an entry point in the group `engram.torsos`, checked by three calls."""

import inspect
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...base.errors import calling, check_keys, check_name, refuse
from ...base.registry import Registry
from ..cores.registry import OUTSIDE
from ..specs import ArraySpec, ObservationSpec
from ..values import ObservationTensor, map_leaves

TORSOS = ("grid", "atari", "atari-resnet", "foveal")
BATCH = 3


class Torso(nn.Module):
    """Base class of custom torsos: `Class(spec, **torso_args)`. An output depends only on the weights and on one
    observation, so BatchNorm and dropout are rejected. A torso whose output is a flattened image [channels, rows,
    columns] sets `image` to these three sizes for cores that read images."""

    output_size: int

    def forward(self, observation: Any) -> Tensor:
        """Observations [N, *shape] (a dict of them for a Dict space), as returned by the environment -> [N, D]."""
        raise NotImplementedError

    def observe(self, observation: ObservationTensor) -> None:
        """Add observations [N, *shape] to running statistics, which are buffers; called once per batch."""


_REGISTRY = Registry("torso", Torso, dict.fromkeys(TORSOS, ""), None, OUTSIDE)


def check_torso_name(name: str) -> None:
    """Raise EngramError with the nearest names for a torso that is neither registered nor `module:Class`."""
    if ":" not in name:
        check_name("torso", name, _REGISTRY.names())


def custom_torso(name: str, spec: ObservationSpec, options: dict[str, Any]) -> Torso:
    """Create and check a torso from an entry point or `module:Class`. Raises ValueError naming class and problem."""
    cls = _REGISTRY.find(name)
    check_keys(f"torso {name!r}", "option", options, list(inspect.signature(cls).parameters)[1:])
    make = partial(cls, spec, **options)  # pyright: ignore[reportCallIssue]
    torso = calling(f"cannot make torso {name!r}: __init__", make, OUTSIDE, (ValueError,))
    _check(torso, name, spec)
    return torso


def _check(torso: Torso, name: str, spec: ObservationSpec) -> None:
    """Call `forward` with three observations and with the first alone; preserve random number generators."""
    size = getattr(torso, "output_size", "not set")
    whole = isinstance(size, int) and size > 0
    refuse(not whole, f"{name}.output_size is {size}; expected a whole number, the width of forward's output")
    weight = next(torso.parameters(), torch.zeros(()))
    if weight.is_meta:
        return
    three = _observations(spec, torch.Generator().manual_seed(0), weight.device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        first, alone = (
            calling(f"{name}.forward", partial(torso, batch), OUTSIDE)
            for batch in (three, map_leaves(lambda x: x[:1], three))
        )
    for output, rows in ((first, BATCH), (alone, 1)):
        actual = f"a tensor {list(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        fits = isinstance(output, Tensor) and output.shape == (rows, size)
        refuse(not fits, f"{name}.forward returned {actual}; expected a tensor [{rows}, {size}]: batch, output_size")
    refuse(not first.is_floating_point(), f"{name}.forward returned {first.dtype}; expected floating-point values")
    refuse(
        not torch.allclose(first[:1], alone, rtol=1e-3, atol=1e-4),
        f"{name}.forward returned different values for an observation outside its batch; expected a deterministic "
        "function of each observation alone (no dropout, no BatchNorm)",
    )


def _observations(spec: ObservationSpec, generator: torch.Generator, device: torch.device) -> ObservationTensor:
    """Sample BATCH observations: bytes of images, else values in 0..1."""
    if not isinstance(spec, ArraySpec):
        return {key: _observations(part, generator, device) for key, part in spec.items()}
    values = torch.rand(BATCH, *spec.shape, generator=generator)
    return (values if spec.scale == 1.0 else (values * 255).to(torch.uint8)).to(device)
