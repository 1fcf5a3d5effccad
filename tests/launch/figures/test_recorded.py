"""Every recorded run is on the page, with what limits it; no test demands an outcome of an experiment."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import figures_page
import layouts
import pytest

from engram.base.errors import EngramError
from engram.launch.figures import figure, results

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results" / "figures"
BEFORE, AFTER = "2026-01-01T00:00:00+00:00", "2027-01-01T00:00:00+00:00"


def documents(name: str) -> dict[str, dict[str, Any]]:
    files = {"full": RESULTS / f"{name}.json", "quick": RESULTS / f"{name}-quick.json"}
    return {size: json.loads(file.read_text()) for size, file in files.items() if file.is_file()}


@pytest.mark.parametrize("name", figure.names())
def test_the_page_is_what_the_data_file_and_the_recorded_runs_make(name: str) -> None:
    """Otherwise: python docs/site/figures_page.py NAME."""
    part = figures_page.text("../benchmarks/results/figures", figure.load(name), documents(name))
    assert part in (ROOT / "docs" / "results.md").read_text()


@pytest.mark.parametrize("name", figure.names())
def test_every_recorded_curve_has_the_settings_of_its_data_file(name: str) -> None:
    """Otherwise the next collection moves the curve to `replaced`, or curves of one figure have different settings."""
    for size, document in documents(name).items():
        assert results.outdated(figure.load(name), size, document) == []


@pytest.mark.parametrize("name", figure.names())
def test_a_figure_without_a_stopping_rule_is_refused(name: str) -> None:
    lines = (ROOT / "launch" / "figures" / "data" / f"{name}.toml").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("stop ="))
    with pytest.raises(EngramError, match=r"key full\.stop is missing"):
        figure.parse(name, text)


def test_a_run_of_before_the_repair_is_marked_until_it_is_renewed() -> None:
    mini_pacman, recorded = figure.load("mini-pacman"), documents("mini-pacman")
    for begun, marks in ((BEFORE, True), (AFTER, False)):
        for document in recorded.values():
            for curve in document["curves"].values():
                for run in curve["runs"].values():
                    run["begun"] = begun
        assert (f"| rmc{layouts.MARK} | 1 |" in figures_page.text("", mini_pacman, recorded)) == marks
    assert layouts.MARK not in figures_page.text("", mini_pacman, recorded)


@pytest.mark.parametrize(
    ("name", "curve", "marked"),
    [("maze", "mnm-g", True), ("maze", "fwm", False), ("graph", "lstm", False), ("t-maze", "concrete-3", True)],
)
def test_networks_whose_gradients_had_the_layout_of_their_parameters_are_not_marked(
    name: str, curve: str, marked: bool
) -> None:
    config = {each.name: each.config for each in figure.load(name).settings["full"].curves}[curve]
    assert bool(layouts.affected(config, {})) == marked
    rmsprop = replace(config, learner=replace(config.learner, optimizer="rmsprop_tf"))
    assert not layouts.affected(rmsprop, {})
    assert not layouts.affected(config, {"begun": AFTER})


def test_the_readmes_table_has_the_marks_of_the_page() -> None:
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| ")]
    titles = {
        "graph": "graph",
        "maze": "maze",
        "T-maze": "t-maze",
        "Cued Catch": "cued-catch",
        "Sequence Recall": "sequence-recall",
        "Mini-Pacman, window": "mini-pacman",
        "Mini-Pacman, whole maze": "mini-pacman-full",
        "BoxWorld": "boxworld",
    }
    for title, name in titles.items():
        row = next(row for row in rows if row.startswith(f"| {title}"))
        full = {"full": documents(name)["full"]}
        assert (layouts.MARK in row) == (layouts.MARK in figures_page.text("", figure.load(name), full)), row


def test_a_run_that_is_replaced_stays_on_the_page() -> None:
    maze, recorded = figure.load("maze"), documents("maze")["full"]
    recorded["curves"]["lstm"] |= {"command": "rl-train with other settings", "settings": {}}
    document = results.collect(maze, "full", [], recorded)
    assert "lstm" not in document["curves"]
    text = figures_page.text("", maze, {"full": document})
    assert "; lstm, seed 1: 265 [261, 268] after 12.5 M steps, replaced." in text


def test_curves_at_several_cuts_of_the_gradient_have_a_panel_for_each() -> None:
    curves = json.loads((RESULTS / "t-maze.json").read_text())["curves"]
    found = results.panels(curves)
    assert list(found) == ["300", "100", "20", "3"]
    assert [sorted(names.values()) for names in found.values()] == [["concrete", "lstm", "parallel"]] * 4
    assert sum(len(names) for names in found.values()) == len(curves)
    assert results.panels(["lstm-20", "lstm-20-plain", "gru-3"])["20"] == {
        "lstm-20": "lstm",
        "lstm-20-plain": "lstm-plain",
    }
    assert list(results.panels(["fwm", "fwm-a2c", "lstm-3"])) == [""]
    assert list(results.panels(["lstm-3", "gru-3"])) == [""], "one cut needs no panels"
