"""Any words and any damage: a command does its work or says what is wrong; no traceback, no hang, nothing changed."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engram.launch.train import command as train
from fuzzing import attempt, bytes_of, changed, command_line, copy_of, damage, reading_line
from runs import TINY

QUIETLY = settings(
    max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
POPULATION = ("--population", "2", "--pbt.explore", "learner.lr=loguniform(1e-4,1e-3)")
OFTEN = ("--pbt.warmup", "2", "--pbt.interval", "2", "--pbt.window", "2", "--checkpoint-every", "0")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a population, with evaluations, copies and several checkpoints."""
    path = tmp_path_factory.mktemp("fuzz") / "run"
    assert train.main([*TINY, "--local", *POPULATION, *OFTEN, "--total-steps", "150", "--run-dir", str(path)]) == 0
    return path


@QUIETLY
@given(random=st.randoms(use_true_random=False))
def test_words(random: Random) -> None:
    command, words = command_line(random)
    outcome = attempt(command, words)
    assert outcome.fine, (command, words, outcome)


@QUIETLY
@given(random=st.randoms(use_true_random=False))
def test_damaged_runs(run: Path, random: Random) -> None:
    spoilt = copy_of(run, run.with_name("spoilt"))
    how = damage(random, spoilt)
    before = bytes_of(spoilt)
    command, words = reading_line(random, spoilt)
    outcome = attempt(command, words)
    assert outcome.fine, (how, command, words, outcome)
    if command != "rl-train" or outcome.code == 2:
        assert not changed(before, bytes_of(spoilt)), (how, command, words, outcome)
