"""The sweep with Optuna trains, prunes a poor trial and finds the best of the others."""

import importlib.util
from pathlib import Path

import pytest

import engram

FILE = Path(__file__).parents[2] / "examples" / "optuna_sweep.py"


def test_the_sweep_runs_and_prunes(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    found = importlib.util.spec_from_file_location("optuna_sweep", FILE)
    assert found is not None
    assert found.loader is not None
    example = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    study = example.sweep(
        *("CartPole-v1", "gru", tmp_path),
        trials=6,
        total_steps=1000,
        core_args={"hidden_size": 8},
        log_every=50,
        envs_per_actor=4,
        envs_per_update=4,
        unroll_length=5,
    )
    states = [trial.state for trial in study.trials]
    pruned = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.PRUNED]
    assert states.count(optuna.trial.TrialState.COMPLETE) + len(pruned) == 6
    assert pruned
    assert study.best_value == max(trial.value for trial in study.trials if trial not in pruned)
    for trial in study.trials:
        run = engram.Run(tmp_path / f"trial-{trial.number:03}")
        assert run.config.learner.lr == trial.params["lr"]
        assert run.config.seed == 1 + trial.number
        assert (run.progress().steps < 1000) == (trial in pruned)
