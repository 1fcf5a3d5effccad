"""A run in a child process: `rl-train`, started by `engram.train(wait=False)`."""

import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from ...base.errors import EngramError
from ...base.processes import end_with_parent
from ..config.run_config import RunConfig
from ..config.settings.plain import to_dict
from ..runs.directory import CONFIG, RunDirectory, as_toml, new_path, refuse_unusable

PROGRAM = "import sys; sys.path += {!r}; from engram.launch.train.command import run; run()"
"""Program of the child process; it appends this process's import path to its own."""
POLL_SECONDS = 0.1
TAIL = 2000  # Characters of a failed process's output in an error message


def started(config: RunConfig) -> "Background":
    refuse_unusable(config.run_dir)
    path = Path(config.run_dir) if config.run_dir else new_path(config.name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / CONFIG
        file.write_bytes(as_toml(to_dict(config) | {"run_dir": None}))
        arguments = ["--config", str(file), "--run-dir", str(path)]
        if config.checkpoint_url:  # saved without its secrets
            arguments += ["--checkpoint-url", config.checkpoint_url]
        return Background(path, arguments)


class Background:
    """A process that trains a run; it ends with a checkpoint when this process ends.

    Args:
        path: the run directory.
        arguments: arguments of `rl-train`.

    Raises the error that prevents the start of the run.
    """

    def __init__(self, path: Path, arguments: Sequence[str]) -> None:
        self.path, self.reason = path, ""
        self._output = tempfile.TemporaryFile()
        self._arguments = arguments
        begun: Future[subprocess.Popen[bytes]] = Future()
        # The thread lives as long as the process: Linux ends the process when the thread that started it ends.
        threading.Thread(target=self._hold, args=(begun,), daemon=True).start()
        self.process = begun.result()
        try:
            while self.running and not ((path / CONFIG).exists() and RunDirectory(path).in_use):
                time.sleep(POLL_SECONDS)
        except BaseException:
            self.stop()
            raise
        if not self.running:
            self.wait()

    def _hold(self, begun: "Future[subprocess.Popen[bytes]]") -> None:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM.format(sys.path), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                preexec_fn=end_with_parent,
                start_new_session=True,  # a terminal's Ctrl-C goes to the parent, which then stops this run
            )
        except BaseException as problem:
            begun.set_exception(problem)
            return
        begun.set_result(process)
        process.wait()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Request a stop with a checkpoint; `wait` waits until the run has ended."""
        self.reason = "stop()"
        if self.running:
            self.process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait for the end of the run; Ctrl-C ends it with a checkpoint. Raises the error that ended it, if any."""
        try:
            code = self.process.wait()
        except KeyboardInterrupt:
            self.stop()
            code = self.process.wait()
        self._output.seek(0)
        text = self._output.read().decode(errors="replace").strip()
        if code == 2:
            raise EngramError(text.splitlines()[-1].removeprefix("rl-train: "))
        if code:
            raise RuntimeError(f"{shlex.join(['rl-train', *self._arguments])} ended with {code}: {text[-TAIL:]}")
        ends = re.findall(r"^(?:stopped \((.*?)\)|finished) ", text, re.MULTILINE)
        self.reason = self.reason or (ends[-1] if ends else "") or "done"
