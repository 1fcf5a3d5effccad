"""benchmarks/gpu.sh goes on where it ended: what has a result is passed over, what fails leaves none and is said."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
RUNS = (
    *("update-grid", "update-sizes", "two-learners", "cores", "boxworld-rmc-plain", "boxworld-lstm-plain"),
    *("t-maze-population-on", "resume", "certificate"),
)


def script(out: Path, **settings: str) -> tuple[int, list[str]]:
    environment = os.environ | {"DEVICE": "cpu", "SMALL": "1", "OUT": str(out)} | settings
    done = subprocess.run(
        ["bash", ROOT / "benchmarks" / "gpu.sh"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_what_has_a_result_is_passed_over(tmp_path: Path) -> None:
    for name in RUNS:
        (tmp_path / f"small-cpu-{name}.json").write_text("{}")
    assert script(tmp_path) == (0, [f"{name}: there already" for name in RUNS])


def test_a_run_that_takes_too_long_leaves_no_result_and_the_others_go_on(tmp_path: Path) -> None:
    for name in RUNS[1:]:
        (tmp_path / f"small-cpu-{name}.json").write_text("{}")
    code, lines = script(tmp_path, LIMIT="0.01")
    assert (code, lines[0]) == (1, f"update-grid failed: {tmp_path}/small-cpu-update-grid.log")
    assert lines[1:] == [f"{name}: there already" for name in RUNS[1:]]
    assert not (tmp_path / "small-cpu-update-grid.json").exists()
