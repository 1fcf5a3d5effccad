"""`--imitate`: a network learns a player's actions, and its run is marked."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engram.base.errors import EngramError
from engram.launch.evaluate import command as evaluation
from engram.launch.figures.figure import Curve
from engram.launch.train import command as train
from runs import TINY, rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "imitation"
    words = [*TINY, "--imitate", "players:Still", "--lr", "0.003", "--local"]
    assert train.main([*words, "--run-dir", str(path), "--total-steps", "800"]) == 0
    return path


def test_the_network_learns_the_players_actions(run: Path) -> None:
    found = [row["metrics"] for row in rows(run)]
    assert found[0]["imitation/agreement"] < 0.9
    assert found[-1]["imitation/agreement"] == 1.0
    assert found[-1]["loss/policy"] < 0.5 < found[0]["loss/policy"]
    assert {row[name] for row in found for name in ("loss/value", "loss/entropy")} == {0.0}


TOLD = ("--predict", "map", "--prediction-size", "8", "--critic", "privileged")


@pytest.mark.parametrize("told", [("--imitate", "players:Summing"), TOLD], ids=["player", "map and critic"])
def test_a_resumed_run_equals_an_uninterrupted_one(told: tuple[str, ...], tmp_path: Path) -> None:
    """Includes the observed cells and the player's state, on which extras depend."""
    words = [*TINY, *told, "--sync", "--local", "--lr-schedule", "constant", "--total-steps"]
    assert train.main([*words, "200", "--run-dir", str(tmp_path / "one")]) == 0
    assert train.main([*words, "100", "--run-dir", str(tmp_path / "two")]) == 0
    assert train.main(["--resume", str(tmp_path / "two"), "--total-steps", "200"]) == 0
    one, two = (rows(tmp_path / name)[-1] for name in ("one", "two"))
    names = ("loss/policy", "loss/value", "loss/prediction", "loss/total")
    assert (one["step"], *(one["metrics"][name] for name in names)) == (
        two["step"],
        *(two["metrics"][name] for name in names),
    )


def test_its_evaluation_and_card_are_marked(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, card = tmp_path / "results.json", tmp_path / "card"
    words = [str(run), "--episodes", "8", "--json", str(file), "--card", str(card), "--gif-episodes", "1"]
    assert evaluation.main(words) == 0
    assert "imitates players:Still: a diagnosis of the network, not a result" in capsys.readouterr().out
    assert json.loads(file.read_text())["imitates"] == "players:Still"
    assert "* imitates: players:Still, a diagnosis" in (card / "README.md").read_text()
    assert "imitate = 'players:Still'" in (card / "config.toml").read_text().replace('"', "'")


@pytest.mark.parametrize("words", [lambda _: ("--imitate", "players:Still"), lambda run: ("--start-from", str(run))])
def test_a_figure_refuses_it(run: Path, words: Callable[[Path], tuple[str, ...]]) -> None:
    """Also an agent that begins with an imitating one's weights."""
    with pytest.raises(EngramError, match="curve lstm imitates a player; allowed in a figure: agents that learn from"):
        _ = Curve("lstm", (*TINY, *words(run))).config


def test_a_name_without_a_class() -> None:
    with pytest.raises(EngramError, match="imitate is 'players'; allowed: module:Class, a player"):
        train.main([*TINY, "--imitate", "players"])
