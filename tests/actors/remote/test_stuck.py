"""The reaper ends what it was told of, and nothing else."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from engram.actors import reaper
from engram.actors.reaper import Reaper, Whereabouts

PROGRAM = """
import json, time
from engram.actors.reaper import whereabouts
print(json.dumps(whereabouts("here")), flush=True)
time.sleep(100)
"""


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple["subprocess.Popen[str]", Whereabouts]]:
    """A process that hears nothing but SIGKILL, and where it says it is."""
    monkeypatch.setattr(reaper, "GRACE_SECONDS", 0.3)
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = Whereabouts(*json.loads(process.stdout.readline()))
    process.send_signal(signal.SIGSTOP)
    yield process, found
    process.kill()
    process.wait()


def test_a_stopped_process_is_ended_after_its_grace(stopped: tuple["subprocess.Popen[str]", Whereabouts]) -> None:
    process, found = stopped
    assert found.pid == process.pid
    ours = Reaper("here")
    ours.expect(found)
    ours.reap()
    assert process.poll() is None, "Ray has its chance first"
    time.sleep(0.4)
    ours.reap()
    assert process.wait(5) == -signal.SIGKILL


def test_others_are_spared(stopped: tuple["subprocess.Popen[str]", Whereabouts]) -> None:
    process, found = stopped
    ours = Reaper("here")
    ours.expect(found._replace(started=str(int(found.started) - 1)))  # its number was another process's before
    ours.expect(found._replace(machine="elsewhere"))
    ours.expect(found._replace(started=""))  # no /proc there
    time.sleep(0.4)
    ours.reap()
    time.sleep(0.4)
    assert process.poll() is None
