"""--start-from: a run begins with the best weights of another, and needs it no more once it has a checkpoint."""

import shutil
from pathlib import Path

import pytest
import torch

from engram.launch import entry
from engram.learners import checkpoints

WORDS = [
    "--env",
    "boxworld",
    "--core",
    "lstm",
    "--core-args",
    "hidden_size=8",
    "--local",
    "--envs-per-actor",
    "8",
    "--envs-per-update",
    "8",
]
WORDS += ["--unroll-length", "10"]
EASY = ["--env-args", "path_lengths=1", "num_distractors=0", "max_steps=5", "grid_size=6"]
HARDER = ["--env-args", "path_lengths=1", "num_distractors=0", "max_steps=9", "grid_size=8"]


def rl_train(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        entry.rl_train([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def weights(run: Path, step: int | None = None) -> torch.Tensor:
    path = checkpoints.latest(run / "checkpoints") if step is None else checkpoints.path_of(run / "checkpoints", step)
    assert path is not None
    agent = checkpoints.load(path)["members"][0]["learner"]["agent"]
    return torch.cat([value.flatten() for value in agent.values()])


def test_a_run_starts_from_the_best_weights_of_another(tmp_path: Path) -> None:
    easy, harder = tmp_path / "easy", tmp_path / "harder"
    assert rl_train(*WORDS, *EASY, "--total-steps", 7000, "--checkpoint-every", 0.5, "--run-dir", easy) == 0
    best = checkpoints.load(checkpoints.latest(easy / "checkpoints") or easy)["best"]
    assert best is not None
    start = weights(easy, best[1])
    # A step of a millionth: what is learned does not matter, where it began does.
    slow = ["--total-steps", 1, "--lr", 1e-9]
    assert rl_train(*WORDS, *HARDER, *slow, "--start-from", easy, "--run-dir", harder) == 0
    torch.testing.assert_close(weights(harder), start, rtol=0, atol=1e-6)
    shutil.rmtree(easy)
    assert rl_train("--resume", harder, "--total-steps", 2000) == 0


@pytest.mark.parametrize(("before", "after"), [(0, 8), (8, 0), (8, 6), (8, 8)])
def test_the_prediction_is_taken_along_only_where_it_is_the_same(tmp_path: Path, before: int, after: int) -> None:
    def agent(run: Path) -> dict[str, torch.Tensor]:
        path = checkpoints.latest(run / "checkpoints")
        assert path is not None
        return checkpoints.load(path)["members"][0]["learner"]["agent"]

    first, second = tmp_path / "first", tmp_path / "second"
    assert rl_train(*WORDS, *EASY, "--prediction-size", before, "--total-steps", 1, "--run-dir", first) == 0
    words = ["--prediction-size", after, "--total-steps", 1, "--lr", 1e-9, "--seed", 5, "--start-from", first]
    assert rl_train(*WORDS, *EASY, *words, "--run-dir", second) == 0
    old, new = agent(first), agent(second)
    for name in new:
        if not name.startswith("prediction."):
            torch.testing.assert_close(new[name], old[name], rtol=0, atol=1e-6)
    layer = "prediction.layers.0.weight"
    assert (layer in new) == (after > 0)
    if before == after:
        torch.testing.assert_close(new[layer], old[layer], rtol=0, atol=1e-6)


def test_another_network_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = tmp_path / "small"
    assert rl_train(*WORDS, *EASY, "--total-steps", 1, "--run-dir", small) == 0
    capsys.readouterr()
    wider = [*WORDS, "--core-args", "hidden_size=9", *EASY]
    assert rl_train(*wider, "--start-from", small, "--run-dir", tmp_path / "wider") == 2
    said = capsys.readouterr().err
    assert "its network differs" in said
    assert "[32, 650] in the checkpoint, [36, 650] here" in said
    assert not (tmp_path / "wider").exists()
    assert rl_train(*WORDS, *EASY, "--start-from", tmp_path / "none", "--run-dir", tmp_path / "new") == 2
    assert "contains no run: it does not exist" in capsys.readouterr().err
