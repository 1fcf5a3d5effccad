"""`rl-train --curriculum`: stages in a whole run, exact over a stop, with actors ahead of the learner too."""

from pathlib import Path
from typing import Any

import pytest

from engram.base.errors import EngramError
from engram.launch.metrics.accumulator import Accumulator, Settled
from engram.launch.runs import saved
from engram.launch.train import command as train
from engram.learners import checkpoints
from runs import TINY
from runs import rows as lines

LEVELS = ["--curriculum", "max_steps=1,2", "--curriculum-measure", "length", "--curriculum-episodes", "24"]
WORDS = [*TINY, "--lr-schedule", "constant", *LEVELS, "--curriculum-score", "1.5", "2.5"]


def run_train(*words: object) -> int:
    return train.main([str(word) for word in words])


def rows(run: Path) -> list[dict[str, Any]]:
    """Metrics by step, without what a clock says."""
    return [
        {"step": line["step"]} | {k: v for k, v in line["metrics"].items() if not k.startswith("perf/")}
        for line in lines(run)
    ]


def stages(run: Path) -> list[float]:
    """The stage of each row."""
    return [row["curriculum/stage"] for row in rows(run)]


@pytest.mark.parametrize(
    "mode", [["--sync", "--num-actors", "2", "--envs-per-update", "8"], ["--algorithm", "a2c"]], ids=["sync", "a2c"]
)
def test_a_resumed_run_gives_the_numbers_of_the_uninterrupted_one(tmp_path: Path, mode: list[str]) -> None:
    """Stopped in every stage, also in the update that ends one."""
    words = [*WORDS, *mode, "--local"]
    assert run_train(*words, "--total-steps", 400, "--run-dir", tmp_path / "whole") == 0
    found = stages(tmp_path / "whole")
    assert sorted(set(found)) == [1, 2, 3]
    assert found == sorted(found)
    changes = [row["step"] for row, later in zip(rows(tmp_path / "whole"), found[1:], strict=False) if later > 1]
    assert run_train(*words, "--total-steps", changes[0], "--run-dir", tmp_path / "parts") == 0
    for total in (*changes[1:4], 300, 400):
        assert run_train("--resume", tmp_path / "parts", "--total-steps", total) == 0
    assert rows(tmp_path / "whole") == rows(tmp_path / "parts")


def test_a_resumed_mixture_gives_the_numbers_of_the_uninterrupted_one(tmp_path: Path) -> None:
    words = [*TINY, "--lr-schedule", "constant", "--curriculum", "max_steps=1,80", "--curriculum-episodes", "8"]
    words += ["--curriculum-mixture", "0.3", "--sync", "--num-actors", "2", "--envs-per-update", "8", "--local"]
    assert run_train(*words, "--total-steps", 800, "--run-dir", tmp_path / "whole") == 0
    assert run_train(*words, "--total-steps", 300, "--run-dir", tmp_path / "parts") == 0
    assert run_train("--resume", tmp_path / "parts", "--total-steps", 800) == 0
    found = rows(tmp_path / "whole")
    assert found == rows(tmp_path / "parts")
    assert len({row["curriculum/share_1"] for row in found}) > 1, "the shares follow what is solved"


def test_a_resume_whose_environments_begin_anew_waits_for_all_of_them(tmp_path: Path) -> None:
    """Without the state of the actors the short episodes are the first to end, as at the beginning of a stage."""
    words = [*TINY, "--local", "--curriculum", "max_steps=12", "--curriculum-score", 1, "--run-dir", tmp_path / "run"]

    def ended() -> list[int]:
        path = checkpoints.latest(tmp_path / "run" / "checkpoints")
        assert path is not None
        return saved.read(path)["members"][0]["curriculum"]["ended"]

    assert run_train(*words, "--total-steps", 400) == 0
    assert ended() == [0, 1, 2, 3]
    assert run_train("--resume", tmp_path / "run", "--total-steps", 409) == 0
    assert len(ended()) < 4, "one update, of half as many steps as an episode may have"


def test_levels_that_come_again_are_the_same_after_a_stop(tmp_path: Path) -> None:
    levels = ["--level-replay", 0.7, "--level-replay-size", 6, "--stagger", 9]
    words = [
        *TINY,
        *levels,
        "--local",
        "--sync",
        "--num-actors",
        2,
        "--envs-per-update",
        8,
        "--lr-schedule",
        "constant",
    ]
    assert run_train(*words, "--total-steps", 700, "--run-dir", tmp_path / "whole") == 0
    for total in (150, 400, 700):
        start = ["--resume", tmp_path / "parts"] if total > 150 else [*words, "--run-dir", tmp_path / "parts"]
        assert run_train(*start, "--total-steps", total) == 0
    assert rows(tmp_path / "whole") == rows(tmp_path / "parts")


def test_a_measure_that_no_episode_reports_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--env", "CartPole-v1", "--core", "gru", "--local", "--total-steps", 900, "--unroll-length", 20]
    assert run_train(*words, "--curriculum", "max_episode_steps=9", "--run-dir", tmp_path / "run") == 0
    assert capsys.readouterr().out.count("no episode reports 'solved', so no stage can end") == 1


@pytest.mark.parametrize("score", [0.9, 0.0])
def test_no_stage_is_left_without_success_and_only_the_last_has_a_best_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, score: float
) -> None:
    monkeypatch.setattr(Accumulator, "settled", lambda _: Settled(1.0, 1000, 0.1))
    words = [*TINY, "--local", "--curriculum", "max_steps=2", "--curriculum-episodes", "8", "--total-steps", 300]
    assert run_train(*words, "--curriculum-score", score, "--run-dir", tmp_path / "run") == 0
    assert stages(tmp_path / "run")[-1] == (1 if score else 2)
    path = checkpoints.latest(tmp_path / "run" / "checkpoints")
    assert path is not None
    assert (saved.read(path)["best"] is None) == bool(score)


def test_actors_ahead_of_the_learner_follow_and_no_batch_has_two_stages(tmp_path: Path) -> None:
    assert run_train(*WORDS, "--act-on", "cpu", "--total-steps", 600, "--run-dir", tmp_path / "run") == 0
    found = rows(tmp_path / "run")
    assert {row["curriculum/stage"] for row in found} == {1, 2, 3}
    lengths = {
        stage: [row["episode/length"] for row in found if row["curriculum/stage"] == stage and "episode/length" in row]
        for stage in (1, 2, 3)
    }
    assert set(lengths[1]) == {2}, "all episodes end at the first stage's step limit"
    assert set(lengths[2][1:]) == {3}, "after the row of the update that ended the first stage"
    assert max(lengths[3]) > 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--curriculum", "max_step=2"], r"stage 1 of the curriculum \(max_step=2\).*did you mean: max_steps"),
        (["--curriculum", "max_steps=2", "--curriculum-measure", "solve"], "'solve'; did you mean: solved"),
        (["--curriculum", "max_steps=1,2", "grid_size=6"], "allowed: the same number of values for each parameter"),
        (["--curriculum", "max_steps=2", "--population", "2"], "population is 2.*--population 0"),
        (["--curriculums", "max_steps=2"], "--curriculum"),
        (["--level-replay", "2"], r"level_replay is 2.0; allowed: 0..1"),
        (
            ["--level-replay", "0.5", "--env", "CartPole-v1", "--env-args"],
            "level_replay is 0.5, but CartPole-v1 does not accept levels",
        ),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(EngramError, match=message) as caught:
        run_train(*TINY, "--local", *words, "--run-dir", tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
