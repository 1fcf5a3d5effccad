"""TensorBoard's events as bytes, without a writer thread: scalars, texts, images, and a file's first events.

TensorBoard's own writer uses a thread. If the disk is full, that thread dies and the run's next write fails.
"""

import io
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import text

_proto: Any = event_pb2  # protobuf creates these classes at import, invisible to type checkers
_summary: Any = summary_pb2


def new_name(directory: Path) -> Path:
    """Return a name for an event file that sorts after all earlier ones, even if the clock was set back."""
    earlier = [path.name.split(".")[3] for path in directory.glob("events.out.tfevents.*")]
    now = max([time.time_ns(), *(int(stamp) + 1 for stamp in earlier if stamp.isdecimal())])
    return directory / f"events.out.tfevents.{now:019d}.{socket.gethostname()}.{os.getpid()}"


def beginning(step: int) -> bytes:
    """First events of a file, which make TensorBoard drop the steps after `step` in earlier files."""
    restart = _proto.SessionLog(status=_proto.SessionLog.START)
    return _records(
        _proto.Event(wall_time=time.time(), file_version="brain.Event:2"),
        _proto.Event(wall_time=time.time(), step=step + 1, session_log=restart),
    )


def scalars(step: int, values: Mapping[str, float]) -> bytes:
    """One row of scalars."""
    row = _summary.Summary(value=[_summary.Summary.Value(tag=tag, simple_value=x) for tag, x in values.items()])
    return _at(step, row)


def configuration(step: int, settings: Mapping[str, Any], hparams: Sequence[Any]) -> bytes:
    """A run's settings by dotted name as a table in the text tab, and summaries for the hparams tab."""
    table = "\n".join(["| setting | value |", "|---|---|", *(f"| {name} | {x} |" for name, x in settings.items())])
    return _at(step, text("config", table), *hparams)


def markdown(step: int, tag: str, content: str) -> bytes:
    """A page in the text tab."""
    return _at(step, text(tag, content))


def image(step: int, tag: str, file: bytes, width: int, height: int) -> bytes:
    """An image in the images tab, a PNG or an animated GIF, with its size in pixels."""
    image = _summary.Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=file)
    return _at(step, _summary.Summary(value=[_summary.Summary.Value(tag=tag, image=image)]))


def _at(step: int, *summaries: Any) -> bytes:
    return _records(*(_proto.Event(wall_time=time.time(), step=step, summary=summary) for summary in summaries))


def _records(*events: Any) -> bytes:
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for event in events:
        writer.write(event.SerializeToString())
    return buffer.getvalue()
