"""A run's metrics on disk: the same rows in TensorBoard events and `metrics.jsonl` (docs/reference/metrics.md)."""

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...base.files import AppendedFile, abandon_after
from ..config.settings.plain import flat_settings, to_dict
from ..runs.directory import RunDirectory
from ..trackers.tracker import Tracker
from . import events, hparams

NAMES = ("population/ancestor",)  # Metrics that are indices, which cannot be averaged
LOG10 = "_log10"  # Suffix of the tag of a learning rate's logarithm: TensorBoard's axes are linear


def plotted(values: Mapping[str, float]) -> dict[str, float]:
    """The values of a row that TensorBoard plots: without NAMES, and with the logarithm of every learning rate."""
    rates = {name: x for name, x in values.items() if re.split(r"[./]", name)[-1] == "lr" and 0 < x < math.inf}
    logarithms = {name + LOG10: math.log10(x) for name, x in rates.items()}
    return {name: x for name, x in values.items() if name not in NAMES} | logarithms


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
        self._step, self._report, self._warned = step, report, False
        self._tracker, self._untracked = tracker, False
        self._named: dict[str, float] = {}
        # A new event file starts after the last row, so TensorBoard keeps the rows of earlier files.
        self._events = AppendedFile(
            lambda: events.new_name(directory.tensorboard), lambda: events.beginning(self._step)
        )
        self._rows = AppendedFile(lambda: directory.metrics_file)
        wall = 0.0
        try:
            last = abandon_after(directory.metrics_file, step)
            recorded = last.get("wall_s") if last else 0.0
            wall = recorded if isinstance(recorded, int | float) and math.isfinite(recorded) else 0.0
        except OSError as problem:
            self._warn(f"cannot remove the rows after step {step:,} from {directory.metrics_file}", problem)
        self._started = time.monotonic() - wall  # the system clock may change

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
        self._append(self._events, events.scalars(step, plotted(values)))
        self._show_names(step, values)
        if self._tracker:
            finite = {name: x for name, x in values.items() if math.isfinite(x)}
            self._track(lambda tracker: tracker.write(step, finite))
        self._step = step

    def hparams(self, config: Any, compared: Sequence[str] | None = None) -> None:
        """Show the run's configuration (a dataclass) in TensorBoard's text and hparams tabs.

        Args:
            compared: settings of a training run that differ between its members. None writes no columns, so that
                TensorBoard chooses them.
        """
        settings = dict(flat_settings(to_dict(config)))
        self.show(events.configuration(self._step, settings, hparams.summaries(config, compared)))

    def show(self, record: bytes) -> None:
        """Append an event from a function of events.py, for TensorBoard only."""
        self._append(self._events, record)

    def video(self, step: int, name: str, gif: bytes, width: int, height: int) -> None:
        """Show a video (GIF, size in pixels) in TensorBoard's images and in the tracker."""
        self.show(events.image(step, name, gif, width, height))
        self._track(lambda tracker: tracker.video(step, name, gif))

    def _show_names(self, step: int, values: Mapping[str, float]) -> None:
        """Write metrics that are indices as text when they change, since TensorBoard would smooth scalars."""
        for name in NAMES:
            if name in values and self._named.get(name) != values[name]:
                self._named[name] = values[name]
                self._append(self._events, events.markdown(step, name, f"member {values[name]:.0f}"))

    def close(self) -> None:
        """Close the files and the tracker."""
        self._track(lambda tracker: tracker.close())
        self._rows.close()
        self._events.close()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _track(self, action: Callable[[Tracker], object]) -> None:
        """Call the tracker, if there is one; only the first exception causes a warning."""
        try:
            if self._tracker:
                action(self._tracker)
        except Exception as problem:
            if not self._untracked:
                self._report(f"the tracker failed: {problem}; training continues and later failures are ignored")
            self._untracked = True

    def _append(self, file: AppendedFile, record: bytes) -> None:
        try:
            file.append(record)
        except OSError as problem:
            self._warn("cannot write metrics", problem)

    def _warn(self, message: str, problem: OSError) -> None:
        if not self._warned:
            self._warned = True
            where = f" ({problem.filename})" if problem.filename else ""
            self._report(f"{message}: {problem.strerror or problem}{where}; training continues; rows may be lost")
