"""rl-eval --card: a trained agent, read back."""

import json
import shutil
import tomllib
from pathlib import Path

import fsspec
import pytest
import torch
import yaml
from PIL import Image

from engram import load_agent
from engram.launch.entry import rl_eval as run
from engram.launch.runs.trained import open_run
from engram.launch.train import command as train
from engram.learners import checkpoints

CARD = ["README.md", "agent.gif", "agent.json", "config.toml", "weights.safetensors"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an update or two."""
    path = tmp_path_factory.mktemp("secret") / "run"
    words = ["--env", "boxworld", "--core", "lstm", "--core-args", "hidden_size=8", "--local", "--run-dir", str(path)]
    words += ["--env-args", "path_lengths=1", "num_distractors=0", "max_steps=6", "--envs-per-actor", "4"]
    assert train.main([*words, "--envs-per-update", "4", "--unroll-length", "10", "--total-steps", "80"]) == 0
    return path


def evaluate(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        run([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.fixture(scope="module")
def card(trained: Path) -> str:
    """A card in a store that is no disk."""
    assert evaluate(trained, "--episodes", 6, "--card", "memory://cards/own", "--gif-episodes", 1) == 0
    return "memory://cards/own"


def test_a_card_has_front_matter_metrics_weights_configuration_and_a_gif(card: str, trained: Path) -> None:
    files = fsspec.filesystem("memory")
    assert sorted(Path(name).name for name in files.ls("/cards/own", detail=False)) == CARD
    _, front, page = files.cat("/cards/own/README.md").decode().split("---\n", 2)
    front = yaml.safe_load(front)
    assert front["pipeline_tag"] == "reinforcement-learning"
    assert {"boxworld", "lstm"} <= set(front["tags"])
    facts = json.loads(files.cat("/cards/own/agent.json"))["evaluation"]
    metrics = front["model-index"][0]["results"][0]["metrics"]
    assert {each["type"]: each["value"] for each in metrics}["mean_reward"] == facts["return"]["mean"]
    assert f"| return | {facts['return']['mean']:.4g} | {facts['return']['low']:.4g} to" in page
    assert Image.open(files.open("/cards/own/agent.gif")).format == "GIF"
    config = files.cat("/cards/own/config.toml").decode()
    assert tomllib.loads(config)["env"] == "boxworld"
    assert trained.parent.name not in config  # nothing of the machine that it was trained on


def test_a_card_is_read_back_by_url_and_from_a_folder(
    card: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = open_run(str(trained), "latest").trainees[0].weights
    copy = tmp_path / "copy"
    fsspec.filesystem("memory").get("/cards/own", str(copy), recursive=True)
    for place in (card, str(copy), f"file://{copy}"):
        found = open_run(place, "latest").trainees[0].weights
        assert found.keys() == weights.keys()
        assert all(torch.equal(found[name], weights[name]) for name in weights)
        own, again = load_agent(trained, seed=4), load_agent(place, seed=4)
        observation = own.observation_space.sample()
        assert again.act(observation) == own.act(observation)
    capsys.readouterr()
    assert evaluate(card, "--episodes", 2) == 0
    assert "boxworld with lstm, own" in capsys.readouterr().out


def test_a_run_starts_from_a_card(card: str, trained: Path, tmp_path: Path) -> None:
    def weights(run: Path) -> dict[str, torch.Tensor]:
        path = checkpoints.latest(run / "checkpoints")
        assert path is not None
        return checkpoints.load(path)["members"][0]["learner"]["agent"]

    words = ["--config", str(trained / "config.toml"), "--start-from", card, "--run-dir", str(tmp_path / "run")]
    assert train.main([*words, "--total-steps", "1", "--lr", "1e-9", "--seed", "9"]) == 0
    before, after = weights(trained), weights(tmp_path / "run")
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("missing", ["weights.safetensors", "agent.json", "config.toml"])
def test_an_incomplete_card_is_one_line(
    card: str, missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    fsspec.filesystem("memory").get("/cards/own", str(copy), recursive=True)
    (copy / missing).unlink()
    capsys.readouterr()
    assert evaluate(f"file://{copy}") == 2
    error = capsys.readouterr().err
    assert "contains no readable agent (FileNotFoundError" in error
    assert error.count("\n") == 1
    shutil.rmtree(copy)
