"""Callbacks of engram.train: real runs."""

import numpy as np
import pytest
import torch

import engram
from engram.learners import checkpoints
from runs import last_step, rows, steps_saved

SMALL = {
    **{"env": "boxworld", "core": "lstm", "core_args": {"hidden_size": 16}, "seed": 5, "show": False},
    **{
        "env_args": {"path_lengths": 1, "num_distractors": 0, "max_steps": 12},
        "envs_per_actor": 4,
        "envs_per_update": 4,
    },
    **{"envs_per_update": 4, "unroll_length": 6, "log_every": 1, "conv_channels": (2,)},
}


def batch_reward(update):
    """A metric of one's own."""
    return {"custom/reward": update.batch.env.reward.mean()}


def weights(run):
    return checkpoints.load(run.checkpoints[-1])["members"][0]["learner"]["agent"]


def test_callbacks_stop_a_run_and_add_a_metric(tmp_path):
    seen, saved = [], []

    def on_row(row):
        seen.append(row)
        return np.bool_(len(seen) == 3)  # what a comparison of two arrays gives

    run = engram.train(
        **SMALL,
        sync=True,
        local=True,
        run_dir=str(tmp_path / "a"),
        on_row=on_row,
        on_update=batch_reward,
        on_checkpoint=saved.append,
    )
    assert run.reason == "on_row"
    written = rows(run.path)
    assert [row["step"] for row in seen] == [row["step"] for row in written]
    assert [{"step": row["step"], **row["metrics"]} for row in written] == seen
    assert [row["metrics"]["custom/reward"] for row in written if "custom/reward" in row["metrics"]]
    assert saved == run.checkpoints
    assert steps_saved(run.path) == [last_step(run.path)]


def test_an_exception_is_raised_after_a_checkpoint(tmp_path):
    saved = []

    def on_row(row):
        raise LookupError(f"pruned at {row['step']}")

    with pytest.raises(LookupError, match="pruned at"):
        engram.train(**SMALL, run_dir=str(tmp_path / "a"), on_row=on_row, on_checkpoint=saved.append)
    run = engram.Run(tmp_path / "a")
    assert saved == run.checkpoints
    assert len(saved) == 1


def test_callbacks_do_not_change_the_numbers_of_a_run(tmp_path):
    settings = SMALL | {"sync": True, "total_steps": 200, "checkpoint_every": 0.001, "algorithm": "ppo"}
    plain = engram.train(**settings, run_dir=str(tmp_path / "plain"))
    scores = []

    def on_checkpoint(path):
        scores.append(engram.evaluate(path.parents[1], checkpoint=int(path.name[5:]), episodes=3))

    run = engram.train(
        **settings,
        run_dir=str(tmp_path / "a"),
        on_update=lambda update: {"custom/noise": torch.rand(3).sum()},
        on_checkpoint=on_checkpoint,
    )
    assert len(scores) > 3
    torch.testing.assert_close(weights(run), weights(plain), rtol=0, atol=0)
    assert np.isfinite(run.metrics["custom/noise"][1:]).all()


def test_resumed_runs_have_callbacks_and_populations_stop_together(tmp_path):
    settings = SMALL | {"population": 2, "total_steps": 400}
    run = engram.train(
        **settings, run_dir=str(tmp_path / "a"), on_update=lambda update: update.member == 1 and update.step >= 60
    )
    assert run.reason == "on_update"
    assert run.progress().steps < 800
    seen = []
    assert run.resume(show=False, on_row=seen.append).reason == "done"
    assert seen[-1]["step"] >= 800


def test_callbacks_need_this_process():
    with pytest.raises(ValueError, match="wait is False; expected wait=True with on_row"):
        engram.train(**SMALL, on_row=print, wait=False)
