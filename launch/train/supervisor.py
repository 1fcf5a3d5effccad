"""`rl-train --restarts N`: a small parent process that resumes a run after it dies.

The run is a child process. If an exception or a signal that cannot be handled ends it (out of memory, a crash in
native code), the parent restarts it from the newest checkpoint. It does not restart a run that ended normally
or because of a user's mistake, and it forwards the signals that request a stop.

Restarts are limited like those of actors: at most N in a row; a new checkpoint resets the count. A run of several days
thus survives failures, while a run that cannot reach its next checkpoint stops.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from ...base.processes import end_with_parent
from ...base.stop_flag import StopFlag
from ...learners import checkpoints
from ..config.command_line import TRUST, value_of, without
from ..config.run_flags import parse_run
from ..config.settings.plain import to_dict
from ..runs.directory import CONFIG, RunDirectory, refuse_unusable, reserved

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # Seconds before a restart; doubled for each further restart in a row


def supervise(arguments: Sequence[str], restarts: int) -> int:
    """Train with --restarts, resuming the run when it dies; return the last process's exit code."""
    trust = [argument for argument in arguments if argument == TRUST]
    argv = [argument for argument in arguments if argument != TRUST]
    if (resumed := value_of("--resume", argv)) is not None:
        # The same arguments again: a run that dies early has not yet saved the changes.
        return _keep_alive([*argv, *trust], [*argv, *trust], Path(resumed), restarts)
    config = parse_run(argv, env_required=True)
    refuse_unusable(config.run_dir, to_dict(config))
    # Neither is saved: the limit applies to this command, and a URL may contain a secret.
    unsaved = {"--time-limit": config.time_limit, "--checkpoint-url": config.checkpoint_url}
    again = [argument for flag, value in unsaved.items() if value for argument in (flag, str(value))]
    with reserved(config.run_dir, config.name) as run:
        argv = [*without(argv, ("--run-dir",)), "--run-dir", str(run)]
        return _keep_alive([*argv, *trust], ["--resume", str(run), *again, *trust], run, restarts)


def _keep_alive(arguments: Sequence[str], resume_arguments: Sequence[str], run: Path, restarts: int) -> int:
    """Run `arguments`, and after failures `resume_arguments`, until no restart is due; return the exit code."""
    in_a_row, reached = 0, newest_step(run)
    with _Child() as child:
        while True:
            again = in_a_row > 0 and (run / CONFIG).exists()
            code = child.run(resume_arguments if again else arguments)
            if code in (0, 2) or child.stop_requested:
                return code if code >= 0 else 128 - code
            now_at = newest_step(run)
            in_a_row, reached = 1 if now_at > reached else in_a_row + 1, now_at
            how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            if in_a_row > restarts:
                _show(f"the run was {how}; {restarts} restarts in a row without a new checkpoint, which is the limit")
                return 1
            pause = min(FIRST_PAUSE * 2 ** (in_a_row - 1), LONGEST_PAUSE)
            _show(f"the run was {how}; restart {in_a_row} of {restarts} in a row follows in {pause:.0f} s")
            if child.stopped_within(pause):
                return 1


def newest_step(run: Path) -> int:
    """Find the step in the name of the newest checkpoint; -1 without checkpoints."""
    steps = [-1]
    for path in RunDirectory(run).checkpoints.glob("step-*"):
        with suppress(checkpoints.CheckpointError):
            steps.append(checkpoints.step_of(path))
    return max(steps)


def _show(line: str) -> None:
    print(f"rl-train: {line}", file=sys.stderr, flush=True)


class _Child:
    """Child process that runs `rl-train`; this process's stop signals are forwarded to it."""

    stop_requested = False
    _process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "_Child":
        self._previous = {number: signal.signal(number, self._pass_on) for number in StopFlag.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def run(self, arguments: Sequence[str]) -> int:
        """Run `rl-train` with these arguments; return its exit code, negative for the signal that ended it."""
        command = [sys.executable, "-P", "-c", "from engram.launch.train.command import run; run()", *arguments]
        # In a separate process group: otherwise Ctrl-C would reach it twice, from the terminal and from here.
        self._process = subprocess.Popen(command, process_group=0, preexec_fn=end_with_parent)
        if self.stop_requested:
            self._process.terminate()
        return self._process.wait()

    def stopped_within(self, seconds: float) -> bool:
        """Wait; return True early if a stop is requested."""
        deadline = time.monotonic() + seconds
        while not self.stop_requested and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.stop_requested

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self.stop_requested = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
