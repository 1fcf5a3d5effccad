"""The examples of a third party's core, environment and algorithm work as their pages say, each by its name alone."""

import json

import pytest
import torch

from engram.agents.certificate.certificate import CHECKS
from engram.agents.certificate.probe import make_probe
from engram.agents.cores import make_core
from engram.launch.train.command import main

CORE = "engram.examples.leaky_memory:LeakyMemory"
ENVIRONMENT = "engram.examples.masked_cartpole:MaskedCartPole"
ALGORITHM = "engram.examples.clipped_policy_gradient:ClippedPolicyGradient"


@pytest.fixture(scope="module")
def probe():
    torch.manual_seed(0)
    return make_probe(lambda: make_core(CORE, 6, hidden_size=16), 6, long_run=100, recall_updates=300)


@pytest.mark.parametrize(
    ("line", "check"),
    [
        pytest.param(*each, id=each[0], marks=[pytest.mark.integration] * (each[0] == "recalls a cue"))
        for each in CHECKS
    ],
)
def test_the_core_passes_the_certificate(probe, line, check):
    torch.manual_seed(0)
    check(probe)


@pytest.mark.integration
def test_core_environment_and_algorithm_train_together(tmp_path):
    """Of the algorithm's own numbers too there are metrics."""
    words = f"--env {ENVIRONMENT} --core {CORE} --core-args hidden_size=8 --algorithm {ALGORITHM}"
    words += " --algorithm-args bound=0.5"
    sizes = "--envs-per-actor 4 --unroll-length 10 --total-steps 400 --log-every 80 --embedding-size 8 --local"
    assert main([*words.split(), *sizes.split(), "--run-dir", str(tmp_path / "run")]) == 0
    rows = [json.loads(line)["metrics"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= row["bounded/clip_rate"] <= 1 for row in rows if "bounded/clip_rate" in row)
    assert any("bounded/clip_rate" in row for row in rows)
