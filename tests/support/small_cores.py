"""Every registered core at a small size."""

from typing import Any

from engram.agents.cores import make_core
from engram.agents.cores.core import Core
from engram.agents.cores.registry import core_parameters

INPUTS = 16
SMALL = {
    "hidden_size": 16,
    "memory_size": 6,
    "num_slots": 3,
    "num_heads": 2,
    "head_size": 8,
    "hidden_channels": 4,
    "pool_size": 16,
    "num_pools": 6,
    "viewport_size": 6,
    "summarizer_size": 16,
    "state_size": 12,
    "num_layers": 2,
    "mlp_size": 12,
    "memory_length": 16,
    "context_size": 3,
    "eta": 2,
    "r": 3,
    "num_thetas": 5,
    "num_units": 8,
}
"""Options that make a core small; each core takes those it has."""


def small_core(name: str, **options: Any) -> Core:
    """A core by name for inputs [B, INPUTS]."""
    sizes = {key: value for key, value in SMALL.items() if key in core_parameters(name)}
    return make_core(name, INPUTS, **(sizes | options))
