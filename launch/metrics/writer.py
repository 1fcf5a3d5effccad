"""A run's metrics on disk: the same rows in TensorBoard events and `metrics.jsonl` (docs/reference/metrics.md).

Events are written here, without the thread of TensorBoard's own writer, which dies when the disk is full.
"""

import io
import json
import math
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import hparams, text

from ...base.files import AppendedFile, abandon_after
from ..config.plain import flat_settings, to_dict
from ..config.run_config import PASSIVE
from ..runs.directory import RunDirectory
from ..trackers.tracker import Tracker

_proto: Any = event_pb2  # protobuf creates these classes at import, invisible to type checkers
_summary: Any = summary_pb2

LEFT_OUT = {*PASSIVE, "run_dir"} - {"seed"}  # Settings that the HPARAMS tab does not show
_ALGORITHM = "learner.algorithm_args"
ANCESTOR = "population/ancestor"  # An index, which TensorBoard would smooth as a scalar
LOG10 = "_log10"  # Suffix of the tag of a learning rate's logarithm: TensorBoard's axes are linear


class MetricsWriter(AbstractContextManager["MetricsWriter"]):
    """Writer of metrics; removed files or a full disk cause lost rows and one warning, but do not end the run. Rows
    after `step`, at which this process starts, are moved to `metrics.abandoned.jsonl`; TensorBoard drops them too."""

    def __init__(
        self, run: Path, step: int, report: Callable[[str], None] = print, tracker: Tracker | None = None
    ) -> None:
        directory = RunDirectory(run)
        self._step, self._report, self._warned = step, report, set[str]()
        self._tracker, self._ancestor = tracker, -1.0  # no ancestor yet
        self._events = AppendedFile(lambda: new_name(directory.tensorboard), self._beginning)
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
        scalars = [_summary.Summary.Value(tag=tag, simple_value=x) for tag, x in plotted.items()]
        self._show(step, _summary.Summary(value=scalars))
        if (ancestor := values.get(ANCESTOR, self._ancestor)) != self._ancestor:
            self._ancestor = ancestor
            self._show(step, text(ANCESTOR, f"member {ancestor:.0f}"))
        finite = {name: x for name, x in values.items() if math.isfinite(x)}
        self._track(lambda tracker: tracker.write(step, finite))
        self._step = step

    def hparams(self, config: Any) -> None:
        """Show a configuration dataclass as a table in TensorBoard's text tab, and as a row of its HPARAMS tab."""
        plain = flat_settings(to_dict(config))  # without the secrets of URLs
        table = "\n".join(["| setting | value |", "|---|---|", *(f"| {name} | {x} |" for name, x in plain)])
        settings = {name: x for name, x in flat_settings(config, whole=True) if name not in LEFT_OUT}
        settings |= {f"{_ALGORITHM}.{key}": x for key, x in settings.get(_ALGORITHM, {}).items()}
        _, session, _ = hparams({name: _to_hparam(x) for name, x in settings.items()}, {})
        self._show(self._step, text("config", table), session)

    def image(self, step: int, tag: str, file: bytes, width: int, height: int) -> None:
        """Show an image, a PNG or an animated GIF with its size in pixels, in TensorBoard's images tab."""
        image = _summary.Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=file)
        self._show(step, _summary.Summary(value=[_summary.Summary.Value(tag=tag, image=image)]))

    def video(self, step: int, name: str, gif: bytes, width: int, height: int) -> None:
        """Show a video (GIF, size in pixels) in TensorBoard's images tab and in the tracker."""
        self.image(step, name, gif, width, height)
        self._track(lambda tracker: tracker.video(step, name, gif))

    def close(self) -> None:
        self._track(lambda tracker: tracker.close())

    def __exit__(self, *_: object) -> None:
        self.close()

    def _beginning(self) -> bytes:
        """First events of a file; TensorBoard drops the steps after the last row here from earlier files."""
        restart = _proto.SessionLog(status=_proto.SessionLog.START)
        return _records(
            _proto.Event(wall_time=time.time(), file_version="brain.Event:2"),
            _proto.Event(wall_time=time.time(), step=self._step + 1, session_log=restart),
        )

    def _show(self, step: int, *summaries: Any) -> None:
        shown = (_proto.Event(wall_time=time.time(), step=step, summary=summary) for summary in summaries)
        self._append(self._events, _records(*shown))

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


def new_name(directory: Path) -> Path:
    """Return a name for an event file that sorts after all earlier ones, even if the clock was set back."""
    earlier = [path.name.split(".")[3] for path in directory.glob("events.out.tfevents.*")]
    now = max([time.time_ns(), *(int(stamp) + 1 for stamp in earlier if stamp.isdecimal())])
    return directory / f"events.out.tfevents.{now:019d}.{socket.gethostname()}.{os.getpid()}"


def _to_hparam(value: Any) -> float | str:
    if isinstance(value, dict):
        return " ".join(f"{key}={x}" for key, x in value.items())
    return value if isinstance(value, int | float) else str(value)


def _records(*events: Any) -> bytes:
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for event in events:
        writer.write(event.SerializeToString())
    return buffer.getvalue()
