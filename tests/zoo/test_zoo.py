"""The agents included in engram load, play, and are as good as their files say."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engram import zoo
from engram.base.errors import EngramError
from engram.launch.evaluate import command as evaluate
from engram.launch.runs.trained import open_run, start_from

EPISODES = 128
MIB = 2**20

agents = pytest.mark.parametrize("name", zoo.names())


def test_there_are_agents_and_they_are_small() -> None:
    sizes = [sum(file.stat().st_size for file in zoo.load(name).folder.iterdir()) for name in zoo.names()]
    assert sizes
    assert max(sizes) <= 3 * MIB
    assert sum(sizes) <= 25 * MIB


@pytest.mark.nightly
@agents
def test_an_agent_plays_as_well_as_its_file_says(name: str, tmp_path: Path) -> None:
    """Two independent estimates of one mean differ by at most three of their joint standard errors."""
    noted = zoo.facts(name)["evaluation"]
    words = [f"zoo:{name}", "--episodes", str(EPISODES), "--seed", "1", "--json", str(tmp_path / "found.json")]
    words += ["--env-args", *noted["env_args"]] if noted["env_args"] else []
    assert evaluate.main(words) == 0
    found = json.loads((tmp_path / "found.json").read_text())["all"]["return"]
    error = sum(((each["high"] - each["low"]) / 3.92) ** 2 for each in (found, noted["return"])) ** 0.5
    assert abs(found["mean"] - noted["return"]["mean"]) <= 3 * error + 1e-6


def test_an_added_agent_can_be_read_by_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = zoo.load(zoo.names()[0])
    monkeypatch.setattr(zoo, "_HERE", tmp_path)
    folder = zoo.add("own", (kept.folder / "config.toml").read_bytes(), kept.weights, kept.facts)
    again = zoo.load("own")
    assert again.facts == kept.facts
    assert again.weights.keys() == kept.weights.keys()
    assert all(torch.equal(again.weights[key], kept.weights[key]) for key in kept.weights)
    assert {file.stat().st_mode & 0o444 for file in folder.iterdir()} == {0o444}


@agents
def test_an_agent_says_where_it_comes_from(name: str) -> None:
    noted = zoo.facts(name)["provenance"]
    assert noted["command"].startswith("rl-train --env ")
    assert noted["steps"] > 0
    assert noted["commit"]
    assert not noted["commit"].endswith("-dirty")


def test_a_misspelt_agent_is_answered_with_the_nearest() -> None:
    name = zoo.names()[0]
    with pytest.raises(EngramError, match=f"did you mean: {name}"):
        open_run(f"zoo:{name}x", "latest")
    with pytest.raises(EngramError, match=f"checkpoint is 'best'; allowed for zoo:{name}, which has only one: latest"):
        open_run(f"zoo:{name}", "best")


def test_a_damaged_agent_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = zoo.names()[0]
    shutil.copytree(zoo.load(name).folder, tmp_path / name)
    monkeypatch.setattr(zoo, "_HERE", tmp_path)
    (tmp_path / name / "weights.safetensors").write_bytes(b"no tensors")
    with pytest.raises(EngramError, match=name):
        open_run(f"zoo:{name}", "latest")


def test_training_starts_from_an_agent_of_the_zoo() -> None:
    name = zoo.names()[0]
    trained = open_run(f"zoo:{name}", "latest")
    factory = trained.config.factory()
    agent = factory.make_agent(factory.make_batch(num_envs=1))
    before = {key: value.clone() for key, value in agent.state_dict().items()}
    start_from(f"zoo:{name}", [agent])
    after = agent.state_dict()
    assert all((after[key] == kept).all() for key, kept in trained.trainees[0].weights.items())
    assert any((after[key] != value).any() for key, value in before.items())


def test_reading_the_names_imports_no_ray() -> None:
    program = "import sys, engram.zoo; engram.zoo.names(); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_listing_names_the_arguments_of_an_easier_environment() -> None:
    assert zoo.environment(zoo.facts("t-maze-lstm")) == "t-maze"
    assert "limbo_time=60" in zoo.environment(zoo.facts("t-maze-ffm"))
    assert zoo.environment(zoo.facts("graph-gru")).endswith("split=test")
