"""A run's metrics on disk: the same rows in TensorBoard events and `metrics.jsonl` (docs/reference/metrics.md)."""

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...base.files import AppendedFile, abandon_after
from ..runs.directory import RunDirectory
from ..trackers.tracker import Tracker
from . import events

ANCESTOR = "population/ancestor"  # An index, which TensorBoard would smooth as a scalar
LOG10 = "_log10"  # Suffix of the tag of a learning rate's logarithm: TensorBoard's axes are linear


class MetricsWriter:
    """Writer of metrics; removed files or a full disk cause lost rows and one warning, but do not end the run.

    Args:
        step: environment steps at the start of this process, 0 or a checkpoint's. Rows of later steps, written before
            the run was stopped, are moved to `metrics.abandoned.jsonl`; TensorBoard drops them too.
    """

    def __init__(
        self, run: Path, step: int, report: Callable[[str], None] = print, tracker: Tracker | None = None
    ) -> None:
        directory = RunDirectory(run)
        self._step, self._report, self._warned = step, report, set[str]()
        self._tracker, self._ancestor = tracker, -1.0  # no ancestor yet
        # A new event file starts after the last row, so TensorBoard keeps the rows of earlier files.
        name, first = lambda: events.new_name(directory.tensorboard), lambda: events.beginning(self._step)
        self._events = AppendedFile(name, first)
        self._rows = AppendedFile(lambda: directory.metrics_file)
        wall = 0.0
        try:
            wall = (abandon_after(directory.metrics_file, step) or {}).get("wall_s")
        except OSError as problem:
            self._warn_of_disk(f"cannot remove the rows after step {step:,} from {directory.metrics_file}", problem)
        trained = wall if isinstance(wall, int | float) and math.isfinite(wall) else 0.0
        self._started = time.monotonic() - trained  # the system clock may change

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one row if there are values; non-finite values are null in `metrics.jsonl`."""
        if not values:
            return
        row = {
            "step": step,
            "time": round(time.time(), 3),
            "wall_s": round(time.monotonic() - self._started, 3),
            "metrics": {name: x if math.isfinite(x) else None for name, x in values.items()},
        }
        self._append(self._rows, json.dumps(row).encode() + b"\n")
        rates = {name: x for name, x in values.items() if re.split(r"[./]", name)[-1] == "lr" and 0 < x < math.inf}
        plotted = {name: x for name, x in values.items() if name != ANCESTOR}
        plotted |= {name + LOG10: math.log10(x) for name, x in rates.items()}
        self.show(events.scalars(step, plotted))
        if (ancestor := values.get(ANCESTOR, self._ancestor)) != self._ancestor:
            self._ancestor = ancestor
            self.show(events.markdown(step, ANCESTOR, f"member {ancestor:.0f}"))
        finite = {name: x for name, x in values.items() if math.isfinite(x)}
        self._track(lambda tracker: tracker.write(step, finite))
        self._step = step

    def hparams(self, config: Any) -> None:
        """Show a configuration dataclass in TensorBoard's text and HPARAMS tabs."""
        self.show(events.configuration(self._step, config))

    def show(self, record: bytes) -> None:
        """Append an event from a function of events.py, for TensorBoard only."""
        self._append(self._events, record)

    def video(self, step: int, name: str, gif: bytes, width: int, height: int) -> None:
        """Show a video (GIF, size in pixels) in TensorBoard's images and in the tracker."""
        self.show(events.image(step, name, gif, width, height))
        self._track(lambda tracker: tracker.video(step, name, gif))

    def close(self) -> None:
        self._track(lambda tracker: tracker.close())

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _track(self, action: Callable[[Tracker], object]) -> None:
        try:
            if self._tracker:
                action(self._tracker)
        except Exception as problem:
            self._warn("tracker", f"the tracker failed: {problem}; training continues and later failures are ignored")

    def _append(self, file: AppendedFile, record: bytes) -> None:
        try:
            file.append(record)
        except OSError as problem:
            self._warn_of_disk("cannot write metrics", problem)

    def _warn_of_disk(self, message: str, problem: OSError) -> None:
        where = f" ({problem.filename})" if problem.filename else ""
        self._warn("disk", f"{message}: {problem.strerror or problem}{where}; training continues; rows may be lost")

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self._report(message)
