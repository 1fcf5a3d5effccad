"""Run directories of 200 KB written before the cores were rebuilt: their agents play and go on learning."""

import json
import shutil
from pathlib import Path

import pytest

from engram.base import compiled
from engram.launch import entry

OLD_RUNS = Path(__file__).resolve().parents[2] / "fixtures" / "old_runs"


@pytest.mark.parametrize("name", ["lstm", "rmc"])
def test_an_old_run_is_evaluated_and_goes_on(tmp_path, name, monkeypatch):
    # The compiled routes are tested elsewhere, and compiling takes longer than all of this.
    monkeypatch.setattr(compiled, "enabled", False)
    run = shutil.copytree(OLD_RUNS / name, tmp_path / name)
    scores = tmp_path / "scores.json"
    for command, *words in (
        ("rl-eval", str(run), "--episodes", "2", "--json", str(scores)),
        ("rl-train", "--resume", str(run), "--total-steps", "800"),
    ):
        with pytest.raises(SystemExit) as end:
            entry.run(command, words)
        assert end.value.code == 0
    assert json.loads(scores.read_text())
    assert (run / "checkpoints" / "step-000000000800").is_dir()
