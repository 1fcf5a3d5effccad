"""Trackers of third parties, by entry point and by name, and the videos that they and TensorBoard get."""

import csv
import io
import json
from pathlib import Path

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engram.base.errors import EngramError
from engram.launch.trackers.tracker import Tracker, tracker_class
from engram.launch.train import command
from runs import TINY, rows


class Failing(Tracker):
    """Fails at every row."""

    def write(self, step, values):
        raise OSError("the service is gone")


class Refusing(Tracker):
    """Fails at its start."""

    def __init__(self, run, *, name, group, config):
        raise RuntimeError("no account")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution on sys.path whose entry point `spreadsheet` is the example's tracker."""
    site = tmp_path / "site"
    info = site / "sheets-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sheets\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[engram.trackers]\nspreadsheet = sheets:Sheets\n")
    (site / "sheets.py").write_text("from engram.examples.csv_tracker import CSVTracker as Sheets\n")
    monkeypatch.syspath_prepend(str(site))


def videos(run: Path) -> list[tuple[int, bytes]]:
    """Videos that TensorBoard reads, by step."""
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"images": 0})
    events.Reload()
    return [(image.step, image.encoded_image_string) for image in events.Images("eval/video")]


def test_an_installed_tracker_gets_the_rows_and_the_videos_of_tensorboard(installed, tmp_path):
    run = tmp_path / "run"
    words = [*TINY, "--local", "--total-steps", "60", "--video-every", "30", "--run-dir", str(run)]
    assert command.main([*words, "--track", "spreadsheet"]) == 0
    with (run / "tracked.csv").open(newline="") as file:
        tracked = [(int(step), name, float(value)) for step, name, value in csv.reader(file)]
    expected = [(row["step"], name, x) for row in rows(run) for name, x in row["metrics"].items() if x is not None]
    assert tracked == expected
    shown = videos(run)
    assert len(shown) >= 2
    for step, gif in shown:
        assert (run / f"eval-video-{step}.gif").read_bytes() == gif
        assert Image.open(io.BytesIO(gif)).n_frames > 1


def test_videos_do_not_change_what_is_learned(tmp_path):
    for name, more in (("plain", []), ("filmed", ["--video-every", "24"])):
        words = [*TINY, "--local", "--sync", "--total-steps", "60", "--run-dir", str(tmp_path / name), *more]
        assert command.main(words) == 0
    plain, filmed = (
        [{k: x for k, x in row["metrics"].items() if not k.startswith("perf/")} for row in rows(tmp_path / name)]
        for name in ("plain", "filmed")
    )
    assert json.dumps(plain) == json.dumps(filmed)


def test_a_tracker_that_fails_costs_one_warning(tmp_path, capsys):
    words = [*TINY, "--local", "--total-steps", "60", "--run-dir", str(tmp_path / "run")]
    assert command.main([*words, "--track", f"{__name__}:Failing"]) == 0
    assert capsys.readouterr().out.count("the tracker failed: the service is gone; training continues") == 1
    assert len(rows(tmp_path / "run")) > 1


def test_a_tracker_that_refuses_to_start_is_one_line(tmp_path):
    words = [*TINY, "--local", "--run-dir", str(tmp_path / "run"), "--track", f"{__name__}:Refusing"]
    with pytest.raises(EngramError, match=r"track is '.*:Refusing', but: no account"):
        command.main(words)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("spreadshet", "did you mean: spreadsheet"),
        ("json:JSONDecoder", "is not a subclass of"),
        ("json:Missing", "cannot load tracker"),
        ("no_such_module:Tracker", "cannot load tracker"),
    ],
)
def test_mistakes_name_what_is_allowed(installed, name, said):
    with pytest.raises(EngramError, match=said):
        tracker_class(name)


def test_an_environment_without_images_is_refused(tmp_path):
    words = ["--env", "secretive:Secretive", "--core", "feedforward", "--local", "--run-dir", str(tmp_path / "run")]
    with pytest.raises(EngramError, match="--video-every 10: secretive:Secretive declares no images"):
        command.main([*words, "--video-every", "10"])
