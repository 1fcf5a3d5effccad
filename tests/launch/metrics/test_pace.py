"""Slow environments are named before training and by rl-doctor, with estimates of what would help."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import slow_envs
from engram.envs.foreign.check import Pace
from engram.launch.api.training import make_agents
from engram.launch.doctor import command as doctor
from engram.launch.metrics.pace import slow_environment
from engram.launch.run.config import RunConfig

WORDS = ["--env", "slow_envs:Slow", "--core", "lstm", "--core-args", "hidden_size=8", "--envs-per-actor", "8"]
WAITING = Pace(step=0.13, reset=0.8, cpu=0.0)


def of(**settings: Any) -> RunConfig:
    return RunConfig(env="slow_envs:Slow", envs_per_actor=16, unroll_length=64, **settings)


def test_an_environment_that_waits_gains_from_as_many_workers_as_environments() -> None:
    slow = slow_environment(of(), WAITING, cores=2)
    assert slow is not None
    assert slow.found == (
        "0.13 s per step, 0.8 s per reset: an unroll of 64 steps x 16 environments takes about 133 s, the first "
        "one 146 s"
    )
    assert slow.advice == ("--env-workers 16: about 8.3 s; --unroll-length 4: about 8.3 s, at the same steps/s")


def test_an_environment_that_computes_gains_from_free_cores_only() -> None:
    computes = WAITING._replace(cpu=1.0)
    assert "--env-workers 4: about 33 s" in getattr(slow_environment(of(), computes, cores=4), "advice", "")
    assert "--env-workers" not in getattr(slow_environment(of(), computes, cores=1), "advice", "--env-workers")
    assert slow_environment(of(env_workers=16), WAITING._replace(reset=0.0), cores=1) is None
    assert slow_environment(of(), Pace(1e-5, 1e-3, 1.0), cores=1) is None


@pytest.mark.integration
def test_training_names_a_slow_environment_before_it_begins() -> None:
    notes: list[str] = []
    config = of(env_args={"step_seconds": 0.02, "reset_seconds": 0.03})
    make_agents(config, config.factory(), torch.device("cpu"), notes.append)
    (note,) = notes
    step, reset = map(float, re.findall(r"([\d.]+) s per (?:step|reset)", note))
    assert step == pytest.approx(0.02, rel=0.5)
    assert reset == pytest.approx(0.03, rel=0.5)
    assert "--env-workers 16: about" in note
    assert "--unroll-length" in note
    make_agents(config := of(), config.factory(), torch.device("cpu"), notes.append)
    assert len(notes) == 1, "a fast environment needs no word"


@pytest.mark.integration
def test_rl_doctor_names_it_and_does_not_wait_for_its_unrolls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(slow_envs.__file__).parent))
    log, began = tmp_path / "log", time.monotonic()
    doctor.main(["--json", *WORDS, "--env-args", "step_seconds=0.3", "reset_seconds=0.5", f"log={log}"])
    found = json.loads(capsys.readouterr().out)
    assert time.monotonic() - began < 60, "one unroll takes more than two minutes"
    (line,) = [each for each in found["findings"] if each["what"] == "environment"]
    assert line["verdict"] == "warning"
    assert re.match(r"0\.3\d? s per step, 0\.5\d? s per reset: an unroll of 64 steps x 8 environ", line["found"])
    assert "--env-workers 8: about" in line["advice"]
    assert found["estimate"]["unroll"] > 0
    assert slow_envs.noted(log, "made") == slow_envs.noted(log, "closed") > 0
