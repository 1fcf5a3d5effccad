"""Core.describe: every core's state as named arrays, one per leaf unless the core says more."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from engram.agents.cores import make_core
from engram.agents.cores.core import Core, named_leaves, state_leaves


class Inner(NamedTuple):
    h: Tensor
    error: Tensor


class Outer(NamedTuple):
    controller: Inner
    memory: Tensor


def test_leaves_are_named_by_their_fields_and_flattened() -> None:
    state = Outer(Inner(torch.zeros(2, 3), torch.zeros(2)), torch.zeros(2, 4, 5))
    shapes = {name: tuple(leaf.shape) for name, leaf in named_leaves(state).items()}
    assert shapes == {"controller.h": (2, 3), "controller.error": (2, 1), "memory": (2, 20)}


@pytest.mark.parametrize("name", ["rmc", "fwm", "mnm-p", "concrete", "lstm", "gru"])
def test_every_number_of_a_state_is_described(name: str) -> None:
    core = make_core(name, 5)
    assert isinstance(core, Core)
    state = core.initial_state(3)
    described = core.describe(state)
    assert all(array.shape[0] == 3 and array.dim() == 2 for array in described.values())
    assert sum(array.shape[1] for array in described.values()) == sum(x[0].numel() for x in state_leaves(state))
