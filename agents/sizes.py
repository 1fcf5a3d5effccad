"""Memory that a network will take, compared with the memory that there is before it is built."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from ..base.memory import Memory
from ..base.messages import size_in_words

COPIES = 4
"""Of every parameter: itself, its gradient and two moments of the optimiser."""
Network = TypeVar("Network", bound=nn.Module)


def without_memory(make: Callable[[], Network], what: str) -> Network | None:
    """The network that `make` returns, with shapes and no numbers; None for one that cannot be made so.

    Raises ValueError naming `what` if it has more parameters than any machine holds.
    """
    try:
        with torch.device("meta"):
            return make()
    except Exception as problem:  # a core of one's own may do anything when it is made
        if "verflow" in str(problem):
            raise ValueError(f"{what} has more parameters than any machine holds") from problem
        return None  # what is wrong shows where it is made in earnest


def training_bytes(network: nn.Module) -> int:
    """Bytes of a network in training, its optimiser included."""
    return COPIES * sum(p.numel() * p.element_size() for p in network.parameters())


def check_fits(what: str, count: int, of: str, each: int, available: Memory) -> None:
    """Raise ValueError with the bytes that `count` times `each` takes if they are more than the limit."""
    if count * each > available.total:
        raise ValueError(
            f"{what} would take {size_in_words(count * each)}, {size_in_words(each)} for each of {count:,} {of}; "
            f"{available}"
        )
