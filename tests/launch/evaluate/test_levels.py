"""rl-eval reports which levels of an evaluation occur in training, and evaluates graphs of the test split."""

from pathlib import Path

import pytest

from engram.launch.config.run_config import RunConfig
from engram.launch.entry import rl_eval as run
from engram.launch.runs.trained import evaluation_factory, levels_line


def line(env: str, trained: dict[str, object], env_args: dict[str, object]) -> str:
    config = RunConfig(env=env, env_args=trained)
    return levels_line(config, evaluation_factory(config, env_args), 0)


def test_graphs_are_evaluated_on_the_test_split_which_training_has_not_seen() -> None:
    assert "split=test; none of its 600 levels occurs in training" in line("pomdp-graph", {}, {})
    assert "; 600 of its 600 levels also occur in training" in line("pomdp-graph", {}, {"split": "train"})
    assert "; 600 of its 600 levels also occur in training" in line("pomdp-graph", {"split": "test"}, {})
    assert "; 600 of its 600 levels also occur in training" in line("pomdp-graph-twin", {}, {"split": "train"})


def test_levels_of_sequence_recall_occur_in_training() -> None:
    assert "; 256 of its 256 levels also occur in training" in line("sequence-recall", {}, {})
    assert "none of its 16 levels" in line("sequence-recall", {}, {"sequence_length": 2})


def test_of_levels_that_hardly_occur_again_the_line_names_the_random_streams_alone() -> None:
    expected = "evaluation seed 0: random streams that training (seed 1) never used"
    assert line("boxworld", {}, {}) == expected
    assert line("CartPole-v1", {}, {}) == expected


def test_rl_eval_prints_the_line_and_plays_these_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    with pytest.raises(SystemExit) as stop:
        run(["zoo:graph-gru", "--episodes", "60", "--json", str(file)])
    assert stop.value.code == 0
    assert "split=test; none of its 600 levels occurs in training" in " ".join(capsys.readouterr().out.split())
    assert '"split": "test"' in file.read_text()
