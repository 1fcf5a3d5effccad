"""Figures with tasks: every core on every task, MMER, and the plot and page of complete and partial runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tasks_page
import torch

from engram.base.errors import EngramError
from engram.launch.figures import command, figure, results

DATA = """
[full]
arguments = "--local --total-steps 2000"
seeds = [1, 2]
[full.tasks]
a = "--env popgym-repeat-first"
b = "--env popgym-autoencode"
[full.curves]
gru = "--core gru"
lru = "--core lru"
"""


def run(values: list[float], steps: int = 2000) -> dict[str, Any]:
    every = [1000 * (number + 1) for number in range(len(values))]
    return {"steps": steps, "planned_steps": 2000, "seconds": 2.0, "curve": {"step": every, "return": values}}


def document(**curves: dict[str, Any]) -> dict[str, Any]:
    def entry(name: str) -> dict[str, str]:
        core, task = name.split("_")
        return {"core": core, "task": task}

    named = {name.replace("_", "."): entry(name) | {"runs": runs} for name, runs in curves.items()}
    return {"measure": "return", "size": "full", "curves": named}


def test_a_figure_with_tasks_has_every_curve_on_every_task() -> None:
    setting = figure.parse("small", DATA).settings["full"]
    assert [curve.name for curve in setting.curves] == ["gru.a", "lru.a", "gru.b", "lru.b"]
    config = setting.curves[3].config
    assert (config.env, config.agent.core, config.total_steps) == ("popgym-autoencode", "lru", 2000)
    assert setting.steps == 2 * 4 * 2000


def test_a_core_stands_for_its_curves_on_all_tasks(tmp_path: Path) -> None:
    small = figure.parse("small", DATA)

    def chosen(*curves: str) -> list[str]:
        config = command.ReproduceConfig(figure="small", curves=curves, seeds=(2,), runs=tmp_path)
        return [each.label for each in command.chosen_runs(small, config)]

    assert chosen("gru") == ["gru.a, seed 2", "gru.b, seed 2"]
    assert chosen("gru.b", "lru") == ["lru.a, seed 2", "gru.b, seed 2", "lru.b, seed 2"]
    with pytest.raises(EngramError, match=r"no curve 'gtrxl'; allowed: gru, gru\.a, lru, lru\.a"):
        chosen("gtrxl")


def test_the_score_is_the_highest_mean_return_of_finished_runs() -> None:
    found = document(gru_a={"1": run([0.25, 0.75, 0.5]), "2": run([0.9], steps=1000)}, gru_b={"1": run([-0.5])})
    assert {task: list(values) for task, values in results.scores(found)["gru"].items()} == {"a": [0.75], "b": [-0.5]}
    ((core, mean),) = results.ranking(results.scores(found))
    assert (core, mean.value) == ("gru", 0.125)
    assert np.isnan(mean.low), "one seed per task says nothing about seeds"


def test_rows_of_fewer_steps_than_a_window_do_not_raise_the_maximum() -> None:
    rows = run([0.0, 1.0, 0.4, 0.4])  # at 1000, 2000, 3000, 4000 steps
    assert results.score(rows, "return", 1) == 1.0
    assert results.score(rows, "return", 2000) == pytest.approx(0.5)
    uneven = rows | {"curve": {"step": [1500, 2000, 4000], "return": [0.0, 1.0, 0.2]}}
    assert results.score(uneven, "return", 2000) == pytest.approx(0.25)


def test_the_ranking_is_the_interquartile_mean_of_cores_with_all_tasks() -> None:
    found = document(
        gru_a={"1": run([0.0]), "2": run([0.2])},
        gru_b={"1": run([0.4]), "2": run([1.0])},
        lru_a={"1": run([0.5]), "2": run([0.6])},
        lru_b={"1": run([0.7]), "2": run([0.8])},
        s5_a={"1": run([1.0])},
    )
    ranked = results.ranking(results.scores(found))
    assert [core for core, _ in ranked] == ["lru", "gru"]
    assert [mean.value for _, mean in ranked] == pytest.approx([0.65, 0.3])  # the middle two of four
    for _, mean in ranked:
        assert mean.low < mean.value < mean.high
    assert results.reached(found)["lru"] == (pytest.approx(0.65), 2)


def test_picture_and_page_of_a_part_of_the_runs(tmp_path: Path) -> None:
    found = document(gru_a={"1": run([0.1, 0.3])}, gru_b={"1": run([0.2, 0.4])}, lru_a={"1": run([0.6], steps=1000)})
    results.draw(found, "Small", tmp_path / "small.png")
    assert (tmp_path / "small.png").stat().st_size > 10_000
    text = tasks_page.text("results", figure.parse("small", DATA), {"full": found})
    assert "MMER of 2 tasks, 0.002 M steps, seed 1" in text
    assert "| gru | 0.350 | 0.300 | 0.400 |" in text
    assert "Unfinished, shown only in the plots: lru.a-1 (0.0 M)." in text
    assert "Best cores for a: gru 0.300." in text
    assert "is not trained yet" in tasks_page.text("results", figure.parse("small", DATA), {})


def test_cores_of_the_popgym_figure_have_as_many_parameters_as_the_gru_on_every_task() -> None:
    found = figure.load("popgym")
    full, quick = found.settings["full"], found.settings["quick"]
    assert (len({each.task for each in full.curves}), len({each.core for each in full.curves})) == (8, 14)
    assert (len({each.task for each in quick.curves}), len({each.core for each in quick.curves})) == (3, 10)
    agents = {(each.task, each.core): each.config.agent for each in full.curves}
    assert all(agents[each.task, each.core] == each.config.agent for each in quick.curves)
    environments: dict[str, Any] = {}
    counts: dict[tuple[str, str], int] = {}
    for curve in full.curves:
        assert curve.config.env_args == {"difficulty": "medium"}
        factory = curve.config.factory()
        if curve.task not in environments:
            environments[curve.task] = factory.make_batch(num_envs=1)
        with torch.device("meta"):
            core = factory.make_agent(environments[curve.task]).core
        counts[curve.task, curve.core] = sum(each.numel() for each in core.parameters())
    for (task, core), count in counts.items():
        assert 0.8 <= count / counts[task, "gru"] <= 1.2, (task, core, count)
