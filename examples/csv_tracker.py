"""A complete custom tracker: rows as a table for a spreadsheet, videos as files.

rl-train --env cued-catch --core gru --track engram.examples.csv_tracker:CSVTracker --video-every 100000
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engram.launch.trackers.tracker import Tracker


class CSVTracker(Tracker):
    """A table with lines [step, name, value], appended to tracked.csv in the run directory."""

    def __init__(self, run: Path, *, name: str, group: str | None, config: dict[str, Any]) -> None:
        self.folder, self.file = run, (run / "tracked.csv").open("a", newline="")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one line per metric."""
        csv.writer(self.file).writerows((step, name, value) for name, value in values.items())

    def video(self, step: int, name: str, gif: bytes) -> None:
        """Write one file per video."""
        (self.folder / f"{name.replace('/', '-')}-{step}.gif").write_bytes(gif)

    def close(self) -> None:
        """Write buffered lines and close the file."""
        self.file.close()
