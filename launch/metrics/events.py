"""TensorBoard's events as bytes, without the thread of TensorBoard's own writer, which dies when the disk is full."""

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

from ..config.run_config import PASSIVE
from ..config.settings.plain import flat_settings, to_dict

_proto: Any = event_pb2  # protobuf creates these classes at import, invisible to type checkers
_summary: Any = summary_pb2

LEFT_OUT = {*PASSIVE, "run_dir"} - {"seed"}  # Settings that the HPARAMS tab does not show
_ALGORITHM = "learner.algorithm_args"


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
    row = _summary.Summary(value=[_summary.Summary.Value(tag=tag, simple_value=x) for tag, x in values.items()])
    return _at(step, row)


def configuration(step: int, config: Any) -> bytes:
    """The settings of a configuration dataclass as a table in the text tab, and as a row of the HPARAMS tab."""
    plain = flat_settings(to_dict(config))  # without the secrets of URLs
    table = "\n".join(["| setting | value |", "|---|---|", *(f"| {name} | {x} |" for name, x in plain)])
    settings = {name: x for name, x in flat_settings(config, whole=True) if name not in LEFT_OUT}
    settings |= {f"{_ALGORITHM}.{key}": x for key, x in settings.get(_ALGORITHM, {}).items()}
    _, session, _ = hparams({name: _to_hparam(x) for name, x in settings.items()}, {})
    return _at(step, text("config", table), session)


def markdown(step: int, tag: str, content: str) -> bytes:
    return _at(step, text(tag, content))


def image(step: int, tag: str, file: bytes, width: int, height: int) -> bytes:
    """An image in the images tab, a PNG or an animated GIF, with its size in pixels."""
    image = _summary.Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=file)
    return _at(step, _summary.Summary(value=[_summary.Summary.Value(tag=tag, image=image)]))


def _to_hparam(value: Any) -> float | str:
    if isinstance(value, dict):
        return " ".join(f"{key}={x}" for key, x in value.items())
    return value if isinstance(value, int | float) else str(value)


def _at(step: int, *summaries: Any) -> bytes:
    return _records(*(_proto.Event(wall_time=time.time(), step=step, summary=summary) for summary in summaries))


def _records(*events: Any) -> bytes:
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for event in events:
        writer.write(event.SerializeToString())
    return buffer.getvalue()
