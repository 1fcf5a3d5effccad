"""Run directories of 200 KB written before the cores were rebuilt: their agents play and go on learning."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

OLD_RUNS = Path(__file__).resolve().parents[2] / "fixtures" / "old_runs"


@pytest.mark.parametrize("name", ["lstm", "rmc"])
def test_an_old_run_is_evaluated_and_goes_on(tmp_path, name):
    run = shutil.copytree(OLD_RUNS / name, tmp_path / name)
    # The compiled routes are tested elsewhere, and compiling takes longer than all of this.
    environment = os.environ | {"ENGRAM_COMPILED": "0"}

    def command(module, *words):
        line = [sys.executable, "-c", f"from engram.launch.{module} import run; run()", *words]
        done = subprocess.run(line, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    scores = tmp_path / "scores.json"
    command("evaluate.command", str(run), "--episodes", "2", "--json", str(scores))
    assert json.loads(scores.read_text())
    command("train.command", "--resume", str(run), "--total-steps", "800")
    assert (run / "checkpoints" / "step-000000000800").is_dir()
