"""`rl-compare`: which runs are one curve, what is compared, and the files."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engram.base.errors import EngramError
from engram.launch.compare import command
from engram.launch.compare.command import compare, load, smoothed
from engram.launch.config.plain import to_dict
from engram.launch.config.run_flags import with_settings
from engram.launch.runs.directory import RunDirectory


def make_run(folder: Path, values: list[float | None], every: int = 100, **settings: Any) -> Path:
    """A run directory with a row of `episode/return` per value."""
    config = with_settings({"env": "t-maze", "core": "lstm"} | settings)
    RunDirectory.create(folder, to_dict(config), name="run").close()
    rows = [
        {"step": every * (k + 1), "time": 1.0, "wall_s": 1.0, "metrics": {"episode/return": value, "loss/total": 0.5}}
        for k, value in enumerate(values)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def two_cores(tmp_path: Path) -> Path:
    """Three seeds of two cores, of 20 rows; the returns of seed s end at s, of the gru at s + 1.5."""
    for core, more in (("lstm", 0.0), ("gru", 1.5)):
        for seed in (1, 2, 3):
            rising = [float(x) for x in np.linspace(0, seed + more, 18)] + [seed + more] * 2
            make_run(tmp_path / "runs" / f"{core}-{seed}", rising, core=core, seed=seed, lr=1e-4)
    return tmp_path / "runs"


def compared(*places: object, by: tuple[str, ...] = (), metric: str = "episode/return") -> Any:
    return compare(load([str(place) for place in places]), by, metric)


def test_a_comparison_is_printed_and_written(
    two_cores: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two_cores.parent)
    assert command.main(["runs", "--out", "cores"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"lstm +t-maze +3 +2 \[1, 3\]", said)
    assert "3 runs in a curve: bootstrap intervals are too narrow" in said

    rows = list(csv.DictReader(Path("cores.csv").read_text().splitlines()))
    means = {row["curve"]: float(row["value"]) for row in rows if row["statistic"] == "IQM"}
    assert means == pytest.approx({"gru": 3.5, "lstm": 2.0})
    better = {(row["curve"], row["versus"]): float(row["value"]) for row in rows if row["statistic"] == "P(better)"}
    assert better == pytest.approx({("gru", "lstm"): 8 / 9, ("lstm", "gru"): 1 / 9})
    assert "| gru | t-maze | 3 | 3.5 [2.5, 4.5] |" in Path("cores.md").read_text()
    assert "![episode/return](cores.png)" in Path("cores.md").read_text()
    with Image.open("cores.png") as picture:
        assert picture.width > 500
        assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 20


def test_runs_are_one_curve_by_settings_or_by_the_flag(two_cores: Path) -> None:
    make_run(two_cores / "slow", [1.0] * 20, core="lstm", seed=9, lr=1e-5)
    assert list(compared(two_cores).cells) == ["core=gru lr=0.0001", "core=lstm lr=0.0001", "core=lstm lr=1e-05"]
    by_core = compared(two_cores, by=("core",))
    assert {name: cells["t-maze"].seeds for name, cells in by_core.cells.items()} == {
        "gru": [1, 2, 3],
        "lstm": [1, 2, 3, 9],
    }
    assert "runs also differ in learner.lr" in by_core.notes
    assert list(compared(two_cores, by=("learner.lr",)).cells) == ["0.0001", "1e-05"]


def test_settings_that_differ_along_with_the_core_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [1.0], core="lstm", lr=1e-3)
    make_run(tmp_path / "b", [1.0], core="gru", lr=1e-4)
    found = compared(tmp_path / "a", tmp_path / "b")
    assert list(found.cells) == ["lstm", "gru"]
    assert "runs also differ in learner.lr" in found.notes


def test_runs_are_compared_up_to_the_last_step_of_the_shortest(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [1.0] * 10 + [9.0] * 10, core="lstm")
    make_run(tmp_path / "b", [2.0] * 10, core="gru")
    found = compared(tmp_path)
    assert found.cells["lstm"]["t-maze"].finals == pytest.approx([1.0])
    assert "t-maze: compared at 1,000 steps, the last step of the shortest run" in found.notes


def test_several_environments_are_scaled_and_resampled_apart(tmp_path: Path) -> None:
    for env, scale in (("t-maze", 1.0), ("maze", 100.0)):
        for core, value in (("lstm", 0.0), ("gru", 0.5)):
            for seed in (1, 2):
                make_run(
                    tmp_path / f"{env}-{core}-{seed}",
                    [scale * (value + seed / 2)],
                    env=env,
                    core=core,
                    seed=seed,
                    lr=scale * 1e-5,
                )
    found = compared(tmp_path)
    assert set(found.environments) == {"t-maze", "maze"}
    for name in ("lstm", "gru"):
        strata = found.strata(name, ["t-maze", "maze"])
        assert strata[0] == pytest.approx(strata[1])
        assert strata[0] == pytest.approx([0.0, 0.5] if name == "lstm" else [0.5, 1.0])


def test_arguments_of_the_environment_make_environments_unless_they_are_compared(tmp_path: Path) -> None:
    for width in (5, 7):
        make_run(tmp_path / f"{width}", [1.0], env_args={"half_width": width})
    assert set(compared(tmp_path).environments) == {"t-maze half_width=5", "t-maze half_width=7"}
    found = compared(tmp_path, by=("half_width",))
    assert (set(found.cells), set(found.environments)) == ({"5", "7"}, {"t-maze"})


def test_a_run_that_diverged_stays_as_far_as_it_has_values_and_one_without_any_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [1.0, 2.0, None, None], seed=1)
    make_run(tmp_path / "b", [None] * 4, seed=2)
    found = compared(tmp_path)
    assert found.cells["lstm"]["t-maze"].finals == pytest.approx([2.0])
    assert any("left out" in note and note.endswith("/b") for note in found.notes)


def test_a_url_is_read_as_a_folder_is(two_cores: Path) -> None:
    assert compared(two_cores.as_uri()).cells.keys() == {"gru", "lstm"}
    assert compared((two_cores / "gru-2").as_uri()).cells.keys() == {"gru"}


def test_members_of_a_population_are_averaged_where_the_run_has_no_such_metric(tmp_path: Path) -> None:
    make_run(tmp_path / "p", [None] * 3, population=2)
    for member, value in ((0, 1.0), (1, 3.0)):
        folder = tmp_path / "p" / "members" / str(member)
        folder.mkdir(parents=True)
        row = {"step": 50, "time": 1.0, "wall_s": 1.0, "metrics": {"episode/return": value}}
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert compared(tmp_path).cells["lstm"]["t-maze"].finals == pytest.approx([2.0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no run is named"),
        (("nowhere",), "nowhere contains no run"),
        (("empty",), "empty contains no run"),
        (("runs", "--metric", "episode/retrun"), r"metric is 'episode/retrun', which no run has; did you mean.*return"),
        (("runs", "--by", "croe"), r"by names 'croe', which is not a setting.*did you mean: core"),
        (("runs", "--out", "empty"), "out is 'empty', which is a directory"),
        (("ftp-of-nobody://x/y",), "ftp-of-nobody://x/y cannot be read"),
    ],
)
def test_mistakes_are_one_line(
    two_cores: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(two_cores.parent)
    (two_cores.parent / "empty").mkdir()
    with pytest.raises(EngramError, match=message) as problem:
        command.main(list(words))
    assert "\n" not in str(problem.value)


def test_smoothing_keeps_means_of_parts() -> None:
    steps = np.arange(1, 1001, dtype=np.float64)
    at = np.linspace(1, 1000, 11)
    np.testing.assert_allclose(smoothed(steps, 2 * steps, at)[1:-1], 2 * at[1:-1], rtol=0.01)
