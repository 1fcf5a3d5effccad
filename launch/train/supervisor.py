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
from pathlib import Path

from ...base.processes import end_with_parent
from ...base.stop_flag import StopFlag
from ..config.command_line import TRUST, value_of, without
from ..config.run_flags import parse_run
from ..runs.directory import CONFIG, RunDirectory, new_path, refuse_unusable

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # Seconds before a restart; doubled for each further restart in a row
POLL_SECONDS = 0.1


def supervise(arguments: Sequence[str], restarts: int, stop: StopFlag) -> int:
    """Train with --restarts, resuming the run when it dies; return the last process's exit code."""
    if (resumed := value_of("--resume", arguments)) is not None:
        # The same arguments again: a run that dies early has not yet saved the changes.
        return _keep_alive(arguments, arguments, Path(resumed), restarts, stop)
    config = parse_run([argument for argument in arguments if argument != TRUST], env_required=True)
    refuse_unusable(config.run_dir)
    # Neither is saved: the limit applies to this command, and a URL may contain a secret.
    unsaved = {"--time-limit": config.time_limit, "--checkpoint-url": config.checkpoint_url}
    again = [argument for flag, value in unsaved.items() if value for argument in (flag, str(value))]
    run = Path(config.run_dir) if config.run_dir else new_path(config.name)
    first = [*without(arguments, ("--run-dir",)), "--run-dir", str(run)]
    trust = [TRUST] * (TRUST in arguments)
    return _keep_alive(first, ["--resume", str(run), *again, *trust], run, restarts, stop)


def _keep_alive(
    arguments: Sequence[str], resume_arguments: Sequence[str], run: Path, restarts: int, stop: StopFlag
) -> int:
    """Run `arguments`, and after failures `resume_arguments`, until no restart is due; return the exit code."""
    in_a_row, reached = 0, newest_step(run)
    with stop:
        while True:
            again = in_a_row > 0 and (run / CONFIG).exists()
            code = _run(resume_arguments if again else arguments, stop)
            if code in (0, 2) or stop.reason:
                return code if code >= 0 else 128 - code
            now_at = newest_step(run)
            in_a_row, reached = 1 if now_at > reached else in_a_row + 1, now_at
            how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            if in_a_row > restarts:
                _show(f"the run was {how}; {restarts} restarts in a row without a new checkpoint, which is the limit")
                return 1
            pause = min(FIRST_PAUSE * 2 ** (in_a_row - 1), LONGEST_PAUSE)
            _show(f"the run was {how}; restart {in_a_row} of {restarts} in a row follows in {pause:.0f} s")
            until = time.monotonic() + pause
            while time.monotonic() < until:
                if stop.reason:
                    return 1
                time.sleep(POLL_SECONDS)


def newest_step(run: Path) -> int:
    """Find the step in the name of the newest checkpoint; -1 without checkpoints."""
    names = (path.name.removeprefix("step-") for path in RunDirectory(run).checkpoints.glob("step-*"))
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _show(line: str) -> None:
    print(f"rl-train: {line}", file=sys.stderr, flush=True)


def _run(arguments: Sequence[str], stop: StopFlag) -> int:
    """Run `rl-train` in a child process; return its exit code, negative for the signal that ended it."""
    command = [sys.executable, "-P", "-c", "from engram.launch.train.command import run; run()", *arguments]
    # In a separate process group: otherwise Ctrl-C would reach it twice, from the terminal and from here.
    process = subprocess.Popen(command, process_group=0, preexec_fn=end_with_parent)
    forwarded = False
    while True:
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if stop.reason and not forwarded:
                process.send_signal(signal.Signals[stop.reason])
                forwarded = True
        except KeyboardInterrupt:  # the second Ctrl-C interrupts the run at once
            process.send_signal(signal.SIGINT)
