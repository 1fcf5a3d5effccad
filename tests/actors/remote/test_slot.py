"""Stuck processes that are noted are ended, and no others."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from engram.actors.remote import slot
from engram.actors.remote.slot import ProcessPlace, StuckProcesses

PROGRAM = """
import json, time
from engram.actors.remote.slot import place_of_this_process
print(json.dumps(place_of_this_process("here")), flush=True)
time.sleep(100)
"""


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple["subprocess.Popen[str]", ProcessPlace]]:
    """A process that hears nothing but SIGKILL, and where it says it is."""
    monkeypatch.setattr(slot, "GRACE_SECONDS", 0.3)
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = ProcessPlace(*json.loads(process.stdout.readline()))
    process.send_signal(signal.SIGSTOP)
    yield process, found
    process.kill()
    process.wait()


def test_a_stopped_process_is_ended_after_its_grace(stopped: tuple["subprocess.Popen[str]", ProcessPlace]) -> None:
    process, found = stopped
    assert found.pid == process.pid
    ours = StuckProcesses("here")
    ours.note(found)
    ours.end_overdue()
    assert process.poll() is None, "Ray has its chance first"
    time.sleep(0.4)
    ours.end_overdue()
    assert process.wait(60) == -signal.SIGKILL


def test_others_are_spared(stopped: tuple["subprocess.Popen[str]", ProcessPlace]) -> None:
    process, found = stopped
    ours = StuckProcesses("here")
    ours.note(found._replace(started=found.started - 1.0))  # its number was another process's before
    ours.note(found._replace(machine="elsewhere"))
    time.sleep(0.4)
    ours.end_overdue()
    time.sleep(0.4)
    assert process.poll() is None
