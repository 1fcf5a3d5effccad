"""The newer cores in whole runs: exact resume, and a population of the one whose state also has integers."""

import pytest
import torch

from engram.launch.train.command import main
from engram.learners import checkpoints
from runs import TINY

SIZES = {
    "gtrxl": "hidden_size=8 num_layers=1 num_heads=1 head_size=8 mlp_size=8 memory_length=5",
    "lru": "hidden_size=8 state_size=6",
    "min-gru": "hidden_size=8",
    "ffm": "hidden_size=8 memory_size=4 context_size=2",
}
UPDATE = 4 * 6
"""Environments and steps of an update."""


def words(core, *more):
    """TINY with another core."""
    plain = list(TINY)
    plain[plain.index("--core") + 1] = core
    at = plain.index("--core-args")
    plain[at + 1 : at + 2] = SIZES[core].split()
    return [*plain, *map(str, more)]


def weights(run, member=0):
    saved = checkpoints.load(checkpoints.latest(run / "checkpoints"))
    return saved["members"][member]["learner"]


def tensors(value):
    """All tensors in a nested state."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return [tensor for part in parts for tensor in tensors(part)]


@pytest.mark.parametrize("core", SIZES)
def test_a_resumed_run_is_bit_for_bit_the_run_without_a_stop(core, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    local = ("--local", "--sync")
    assert main(words(core, *local, "--lr-schedule", "constant", "--total-steps", 4 * UPDATE, "--run-dir", whole)) == 0
    assert main(words(core, *local, "--lr-schedule", "constant", "--total-steps", 2 * UPDATE, "--run-dir", halves)) == 0
    assert main(["--resume", str(halves), "--total-steps", str(4 * UPDATE)]) == 0
    ours, wanted = tensors(weights(halves)), tensors(weights(whole))
    assert len(ours) == len(wanted) > 5
    assert all(torch.equal(a, b) for a, b in zip(ours, wanted, strict=True))


def test_members_of_a_population_learn(tmp_path):
    run = tmp_path / "run"
    assert (
        main(words("gtrxl", "--local", "--sync", "--population", 2, "--total-steps", 2 * UPDATE, "--run-dir", run)) == 0
    )
    first, second = (tensors(weights(run, member)) for member in (0, 1))
    assert any(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
