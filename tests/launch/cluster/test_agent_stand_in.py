"""The stand-in of Ray's agents ends with raylet, also if raylet ended first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engram.launch.cluster import agent_stand_in
from runs import wait_for


@pytest.mark.parametrize("raylet", [None, 2**22 - 1])
def test_it_lives_as_long_as_raylet(tmp_path: Path, raylet: int | None) -> None:
    pid = os.getpid() if raylet is None else raylet
    command = [sys.executable, "-I", "-S", agent_stand_in.__file__, str(tmp_path), "node", "some_port"]
    with subprocess.Popen(command, env=os.environ | {"RAY_RAYLET_PID": str(pid)}) as process:
        try:
            wait_for(lambda: (tmp_path / "some_port_node").exists())
            assert (tmp_path / "some_port_node").read_text() == "-1"
            if raylet is None:
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(1.5)
            else:
                assert process.wait(10) == 0
        finally:
            process.kill()
