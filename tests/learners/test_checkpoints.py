import hashlib
import json
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engram.learners.checkpoints import CheckpointError, Kept, latest, load, path_of, save, step_of, verify

FILES = ["SHA256SUMS", "state.json", "tensors.pt"]


def some_state(seed: int = 0, size: int = 50) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        "agent": {"weight": torch.from_numpy(draw.normal(size=(size, 2)).astype(np.float32))},
        "envs": [{"random": draw.integers(0, 2**63, size).astype(np.uint64)}],
        "steps": 10**15 + seed,
        "lr": 0.1,
        "best": None,
        "betas": (0.9, 0.999),
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert torch.equal(found["agent"]["weight"], expected["agent"]["weight"])
    assert found["envs"][0]["random"].dtype == np.uint64
    np.testing.assert_array_equal(found["envs"][0]["random"], expected["envs"][0]["random"])
    for name in ("steps", "lr", "best", "betas"):
        assert found[name] == expected[name]
    assert found.keys() == expected.keys()


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = save(tmp_path / "run" / "checkpoints", 123456, some_state())
    assert path == tmp_path / "run" / "checkpoints" / "step-000000123456"
    assert step_of(path) == 123456
    assert sorted(file.name for file in path.iterdir()) == FILES
    assert_same(load(path), some_state())


def test_others_can_check_and_read_the_files(tmp_path: Path) -> None:
    path = save(tmp_path, 1, some_state())
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=path, check=True, capture_output=True)
    tensors = torch.load(path / "tensors.pt", weights_only=True)
    assert sorted(tensors) == ["agent/weight", "envs/0/random"]
    assert json.loads((path / "state.json").read_text())["step"] == 1


def test_latest_is_the_highest_step(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    assert latest(tmp_path / "missing") is None
    paths = [save(tmp_path, step, some_state(step)) for step in (9, 2_000_000_000_000, 100)]
    (tmp_path / "step-99999999999999").write_text("a file")
    (tmp_path / "step-abc").mkdir()
    (tmp_path / "notes").mkdir()
    assert latest(tmp_path) == paths[1]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 5, some_state(1))
    path = save(tmp_path, 5, some_state(2))
    assert_same(load(path), some_state(2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000000000005"]


# -- damage ----------------------------------------------------------------------------------------------------------


def flip(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_is_noticed(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 1, some_state())
    length = (path / name).stat().st_size
    for position in {0, 1, 63, 64, 65, length // 3, length // 2, length - 2, length - 1} & set(range(length)):
        for bit in (0, 5, 7):
            flip(path / name, position, bit)
            with pytest.raises(CheckpointError, match="damaged"):
                load(path)
            flip(path / name, position, bit)
    verify(path)


def test_something_added_to_the_checksums_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path, 1, some_state())
    with (path / "SHA256SUMS").open("a") as file:
        file.write("\n")
    with pytest.raises(CheckpointError, match="SHA256SUMS: damaged"):
        load(path)


@pytest.mark.parametrize("name", FILES)
def test_truncated_and_missing_files_are_named(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 1, some_state())
    whole = (path / name).read_bytes()
    for kept in (0, 1, len(whole) // 2, len(whole) - 1):
        (path / name).write_bytes(whole[:kept])
        with pytest.raises(CheckpointError, match=r"damaged") as problem:
            load(path)
        assert str(path) in str(problem.value)
        if name != "SHA256SUMS":
            assert str(path / name) in str(problem.value)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        load(path)


def test_latest_passes_over_damaged_ones_and_names_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = [save(tmp_path, step, some_state(step)) for step in (1, 2, 3)]
    flip(paths[2] / "tensors.pt", 100)
    with caplog.at_level(logging.WARNING):
        assert latest(tmp_path) == paths[1]
    assert [str(paths[2] / "tensors.pt") in message for message in caplog.messages] == [True]
    for path in paths[:2]:
        (path / "state.json").write_bytes(b"")
    assert latest(tmp_path) is None
    assert all(path.is_dir() for path in paths)


def signed(path: Path, name: str, content: bytes) -> None:
    """Replace a file and make the checksums agree, as somebody who means harm would."""
    (path / name).write_bytes(content)
    sums = [f"{hashlib.sha256((path / n).read_bytes()).hexdigest()}  {n}\n" for n in ("state.json", "tensors.pt")]
    (path / "SHA256SUMS").write_text("".join(sums))
    verify(path)


class Malice:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.victim,))


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_the_tensor_file_is_refused_and_not_run(tmp_path: Path, zipped: bool) -> None:
    path, victim, bait = save(tmp_path, 1, some_state()), tmp_path / "victim", tmp_path / "bait"
    if zipped:
        torch.save({"agent/weight": Malice(victim)}, bait)
    else:
        bait.write_bytes(pickle.dumps(Malice(victim), protocol=2))
    signed(path, "tensors.pt", bait.read_bytes())
    with pytest.raises(CheckpointError, match=r"tensors\.pt: rejected"):
        load(path)
    assert not victim.exists()
    if not zipped:
        pickle.loads(bait.read_bytes())
        assert victim.exists(), "the bait itself must work, or this test shows nothing"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("state.json", b"[]"),
        ("state.json", b"{}"),
        ("state.json", b"not json"),
        ("state.json", b'{"format": 1, "step": 1, "state": {"$tensor": "nowhere"}}'),
        ("state.json", b'{"format": 1, "step": 1, "state": {"$code": "print(1)"}}'),
        ("tensors.pt", b""),
        ("tensors.pt", b"PK\x03\x04 not a zip"),
    ],
)
def test_foreign_content_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = save(tmp_path, 1, some_state())
    signed(path, name, content)
    with pytest.raises(CheckpointError, match=str(path)):
        load(path)


def test_another_format_is_refused_by_its_number(tmp_path: Path) -> None:
    path = save(tmp_path, 1, some_state())
    signed(path, "state.json", (path / "state.json").read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(CheckpointError, match="format 2 of another engram version; this version reads 1"):
        load(path)


def test_a_directory_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="SHA256SUMS is missing"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="expected step-<number>"):
        step_of(tmp_path / "latest")


# -- a disk that refuses ---------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A real file system of 256 kB."""
    place = Path(tempfile.mkdtemp())
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "engram-test", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        place.rmdir()
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)
    place.rmdir()


def assert_earlier_is_whole(directory: Path, earlier: Path, state: dict[str, Any]) -> None:
    assert_same(load(earlier), state)
    assert latest(directory) == earlier
    assert [entry.name for entry in directory.iterdir()] == [earlier.name]


def test_a_full_disk_leaves_the_earlier_checkpoint(small_disk: Path) -> None:
    earlier = save(small_disk, 1, some_state(1))
    for step in (2, 1):
        with pytest.raises(CheckpointError, match=f"step-{step:012d}: No space left on device; earlier checkpoints"):
            save(small_disk, step, some_state(2, size=40_000))
        assert_earlier_is_whole(small_disk, earlier, some_state(1))
    assert_same(load(save(small_disk, 3, some_state(3))), some_state(3))


def test_a_file_size_limit_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    earlier = save(tmp_path, 1, some_state(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(CheckpointError, match="step-000000000002: File too large"):
            save(tmp_path, 2, some_state(2, size=40_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_earlier_is_whole(tmp_path, earlier, some_state(1))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="step-000000000001: Not a directory"):
        save(tmp_path / "file" / "checkpoints", 1, some_state())
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(CheckpointError, match="Permission denied"):
            save(tmp_path / "closed", 1, some_state())


def test_a_read_only_disk(small_disk: Path) -> None:
    earlier = save(small_disk, 1, some_state(1))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        save(small_disk, 2, some_state(2))
    assert_earlier_is_whole(small_disk, earlier, some_state(1))


def test_pruning_a_read_only_disk(small_disk: Path) -> None:
    for step in (1, 2):
        save(small_disk, step, some_state(step))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(
        CheckpointError, match=r"cannot remove a checkpoint: .*Read-only file system.*step-000000000001"
    ):
        Kept(small_disk).prune(1)
    assert latest(small_disk) == path_of(small_disk, 2)


def test_a_state_that_cannot_be_kept_touches_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="state at a is a set"):
        save(tmp_path / "checkpoints", 1, {"a": {1}})
    assert not (tmp_path / "checkpoints").exists()


WRITER = """
import signal
import sys
from pathlib import Path
import numpy as np
from engram.learners.checkpoints import save
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
print("ready", flush=True)
for i in range(10**9):
    save(Path(sys.argv[1]), 7 + i % 2, {"number": i, "array": np.full(20_000, i)})
    print(i, flush=True)
"""


@pytest.mark.integration
@pytest.mark.parametrize(("end", "saves"), [(signal.SIGKILL, 3), (signal.SIGINT, 2)])
def test_a_writer_that_is_ended_at_any_moment_leaves_whole_checkpoints(
    tmp_path: Path, end: signal.Signals, saves: int
) -> None:
    """The writer overwrites two steps again and again; what it said it had saved is there, or something newer."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(1 + saves)]
        writer.send_signal(end)
        lines += writer.stdout.readlines()
    done = [int(line) for line in lines[1:] if line.endswith("\n")]
    found = [load(path) for path in tmp_path.glob("step-*")]
    assert max(state["number"] for state in found) >= done[-1]
    for state in found:
        assert (state["array"] == state["number"]).all()
    if end == signal.SIGINT:
        assert not list(tmp_path.glob(".partial-*"))


def test_what_a_killed_writer_left_is_swept_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / ".partial-step-000000000009"
    left.mkdir()
    (left / "tensors.pt").write_bytes(b"half")
    assert latest(tmp_path) is None
    path = save(tmp_path, 9, some_state())
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_crash_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    save(tmp_path, 3, some_state(3))
    path = save(tmp_path, 4, some_state(4))
    aside = path.rename(path.with_name(f"{path.name}.old"))
    found = latest(tmp_path)
    assert found == aside
    assert step_of(found) == 4
    assert_same(load(found), some_state(4))
    assert latest(tmp_path) == aside
    (tmp_path / path.name).mkdir()
    for file in aside.iterdir():
        (tmp_path / path.name / file.name).write_bytes(file.read_bytes())
    assert latest(tmp_path) == path, "of two of one step, the one that took the other's place"
    again = save(tmp_path, 4, some_state(5))
    assert latest(tmp_path) == again
    assert not aside.exists()


# -- pruning ---------------------------------------------------------------------------------------------------------


def test_prune_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    paths = [save(tmp_path, step, some_state(step)) for step in range(1, 7)]
    assert Kept(tmp_path).prune(2, best=paths[1]) == [paths[3], paths[2], paths[0]]
    assert sorted(tmp_path.iterdir()) == [paths[1], paths[4], paths[5]]
    assert Kept(tmp_path).prune(2, best=paths[5]) == [paths[1]]
    assert Kept(tmp_path).prune(2) == []


def test_prune_neither_counts_nor_removes_what_is_damaged_or_foreign(tmp_path: Path) -> None:
    paths = [save(tmp_path, step, some_state(step)) for step in range(1, 5)]
    flip(paths[3] / "tensors.pt", 50)
    (tmp_path / "notes").mkdir()
    assert Kept(tmp_path).prune(2) == [paths[0]]
    assert sorted(tmp_path.iterdir()) == [tmp_path / "notes", *paths[1:]]
