"""TensorBoard's event files as bytes, without a writer thread: a row of scalars, the configuration, a file's beginning.

TensorBoard's own writer hands records to a thread that dies on a full disk and takes the run's next write with it.
"""

import io
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import hparams, text

_proto: Any = event_pb2  # protobuf makes these classes at import, out of sight of type checkers
_summary: Any = summary_pb2


def new_name(directory: Path) -> Path:
    """A name for an event file that sorts after all earlier ones."""
    return directory / f"events.out.tfevents.{time.time_ns():019d}.{socket.gethostname()}.{os.getpid()}"


def beginning(step: int) -> bytes:
    """What a file begins with: TensorBoard forgets what earlier files say of the steps after `step`."""
    restart = _proto.SessionLog(status=_proto.SessionLog.START)
    return _records(
        _proto.Event(wall_time=time.time(), file_version="brain.Event:2"),
        _proto.Event(wall_time=time.time(), step=step + 1, session_log=restart),
    )


def scalars(step: int, values: Mapping[str, float]) -> bytes:
    """One row of numbers."""
    row = _summary.Summary(value=[_summary.Summary.Value(tag=tag, simple_value=x) for tag, x in values.items()])
    return _records(_proto.Event(wall_time=time.time(), step=step, summary=row))


def configuration(step: int, settings: Mapping[str, Any]) -> bytes:
    """A run's settings by dotted name: a table in the text tab, a session in the hparams tab."""
    table = "\n".join(["| setting | value |", "|---|---|", *(f"| {name} | {x} |" for name, x in settings.items())])
    plain = {name: x if isinstance(x, bool | int | float | str) else str(x) for name, x in settings.items()}
    _, session, _ = hparams(plain, {})
    return _records(
        *(_proto.Event(wall_time=time.time(), step=step, summary=x) for x in (text("config", table), session))
    )


def _records(*events: Any) -> bytes:
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for event in events:
        writer.write(event.SerializeToString())
    return buffer.getvalue()
