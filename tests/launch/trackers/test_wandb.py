"""`--track wandb`, offline: the rows of metrics.jsonl are in W&B's file, number by number."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from engram.base.errors import EngramError
from engram.launch.train import command
from runs import RL_TRAIN, TINY, rows


def records(file: Path) -> list[bytes]:
    """Records of a W&B file: LevelDB's log format, blocks of 32 KiB, after a header of 7 bytes."""
    content, found, position, begun = file.read_bytes(), [], 7, b""
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        begun += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            found.append(begun)
            begun = b""
    return found


def tracked(run: Path) -> list[dict[str, float]]:
    """Rows of the metrics that W&B has."""
    internal = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    found = []
    for file in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        for content in records(file):
            record = internal.Record()
            record.ParseFromString(content)
            if record.history.item:
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                found.append({name: x for name, x in row.items() if name[0] != "_"})
    return found


def test_wandb_has_the_metrics_by_their_names(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    words = [*TINY, "--local", "--total-steps", "100", "--track", "wandb"]
    # In a process of its own: W&B's has written everything when that has ended.
    subprocess.run([RL_TRAIN, *words, "--run-dir", str(tmp_path / "a")], check=True, timeout=200)
    expected = [
        {"step": row["step"], **{name: x for name, x in row["metrics"].items() if x is not None}}
        for row in rows(tmp_path / "a")
    ]
    assert len(expected) > 2
    assert tracked(tmp_path / "a") == expected

    before = (tmp_path / "a" / ".wandb-id").read_text()
    subprocess.run([RL_TRAIN, "--resume", str(tmp_path / "a"), "--total-steps", "150"], check=True, timeout=200)
    assert (tmp_path / "a" / ".wandb-id").read_text() == before
    assert len(tracked(tmp_path / "a")) == len(rows(tmp_path / "a"))


def test_without_the_package_the_flag_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(EngramError, match=r"track is 'wandb', which needs a package: pip install 'engram-rl\[wandb\]'"):
        command.main([*TINY, "--local", "--track", "wandb", "--run-dir", str(tmp_path / "a")])
    assert not (tmp_path / "a").exists()


def test_nothing_is_tracked_unless_asked_for(tmp_path):
    assert command.main([*TINY, "--local", "--total-steps", "30", "--run-dir", str(tmp_path / "a")]) == 0
    assert "wandb" not in sys.modules or not list((tmp_path / "a").glob("*wandb*"))
    assert not list((tmp_path / "a").glob("*wandb*"))
