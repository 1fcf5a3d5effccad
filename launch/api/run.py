"""`engram.train` starts a run; `engram.Run` controls it and reads its configuration, metrics and checkpoints."""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from ...agents.process import settings_of_a_command
from ...base.errors import EngramError, refuse
from ...base.processes import StopFlag, end_with_parent
from ..config.command_line import RL_TRAIN
from ..config.plain import to_dict
from ..config.run_config import RunConfig
from ..config.run_flags import with_settings
from ..evaluate.episodes import Summary
from ..metrics.rows import Array, read_log, table_of
from ..runs.directory import CONFIG, RunDirectory, as_toml, new_path, refuse_unusable
from ..runs.mirror import refuse_taken
from ..runs.trained import NO_EFFECT, resumed_config, run_config
from ..train.callbacks import CHECKPOINT, ROW, UPDATE, Callbacks, Update
from .agent import TrainedAgent, evaluate, load_agent
from .training import train as train_here

POLL_SECONDS = 0.1
TAIL = 2000  # Characters of a failed process's output in an error message


class Background:
    """A process that trains the run in directory `path` with these arguments of `rl-train`; it ends with a checkpoint
    when this process ends. Raises the error that prevents the start of the run."""

    def __init__(self, path: Path, arguments: Sequence[str]) -> None:
        self.path, self.reason, self._arguments = path, "", arguments
        self._output = tempfile.TemporaryFile()
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
            program = f"import sys; sys.path += {sys.path!r}; {RL_TRAIN}"
            command = [sys.executable, "-P", "-c", program, *self._arguments]
            streams: Any = {"stdin": subprocess.DEVNULL, "stdout": self._output, "stderr": self._output}
            # In a new session, so that a terminal's Ctrl-C goes to the parent, which then stops this run
            process: Any = subprocess.Popen(command, **streams, preexec_fn=end_with_parent, start_new_session=True)
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


class Progress(NamedTuple):
    """Progress of a run."""

    steps: int
    """Environment steps that all members have learned from."""
    total_steps: int
    running: bool
    """Whether a process is training the run."""
    metrics: dict[str, float]
    """The last row of metrics (docs/reference/metrics.md)."""

    @property
    def fraction(self) -> float:
        """Fraction of the steps, 0..1."""
        return min(self.steps / self.total_steps, 1.0)


class Run:
    """A training run: the result of `engram.train`, or any run directory. Raises ValueError if `path` has no run."""

    def __init__(self, path: str | Path, *, process: Background | None = None, reason: str = "") -> None:
        self._directory = RunDirectory.open(path, lock=False)
        self.path = self._directory.path
        """Run directory."""
        self.reason = reason
        """Why the run ended: "done", "time limit", "SIGINT", "stop()"; empty during the run, and for a run opened
        from its directory."""
        self._process = process

    def __repr__(self) -> str:
        now = self.progress()
        running = ", running" if now.running else ""
        return f"Run({str(self.path)!r}): {now.steps:,} of {now.total_steps:,} steps{running}"

    @property
    def config(self) -> RunConfig:
        """Resolved configuration."""
        return run_config(self._directory)

    @property
    def metrics(self) -> dict[str, Array]:
        """Table of all rows of metrics: columns [K] by name, nan where a row has no value.

        `step` contains environment steps, `time` seconds since 1970, `wall_s` seconds of training; the other names are
        those in TensorBoard (docs/reference/metrics.md). `pandas.DataFrame(run.metrics)` converts it.
        """
        return table_of(read_log(self._directory.metrics_file))

    @property
    def checkpoints(self) -> list[Path]:
        """Directories of the checkpoints, oldest first."""
        return sorted(path for path in self._directory.checkpoints.glob("step-*") if path.name[5:].isdigit())

    def progress(self) -> Progress:
        """Read the current progress."""
        config, rows = self.config, read_log(self._directory.metrics_file)
        total, last = config.total_steps * config.num_members, rows[-1] if rows else {}
        steps = max(int(last.get("step", 0)), *(int(path.name[5:]) for path in self.checkpoints), 0)
        return Progress(steps, total, self._directory.in_use, last)

    def stop(self) -> "Run":
        """Stop a run of `train(wait=False)` with a checkpoint and wait for its end. No effect if it has ended."""
        if self._process is not None:
            self._process.stop()
            return self.wait()
        if self._directory.in_use:
            raise ValueError(f"{self.path} is trained by another process; allowed: stop() of the Run that started it")
        return self

    def wait(self) -> "Run":
        """Wait for the end of a run started by `train(wait=False)`; Ctrl-C ends it with a checkpoint. Raises the error
        that ended it."""
        if self._process is not None:
            process, self._process = self._process, None
            process.wait()
            self.reason = process.reason
        return self

    def resume(self, *, wait: bool = True, show: bool = True, **settings: Any) -> "Run":
        """Resume from the newest checkpoint.

        Args:
            wait: whether to wait for the end of the run; otherwise returns when its process has started.
            show: show progress.
            **settings: settings that may change within a run, such as total_steps=2_000_000, by the names of
                `rl-train`'s flags; and on_row, on_update, on_checkpoint as in `engram.train`.
        """
        callbacks = Callbacks(**{name: settings.pop(name, None) for name in (ROW, UPDATE, CHECKPOINT)})
        fixed = [name for flag in NO_EFFECT if (name := flag.strip("-").replace("-", "_")) in settings]
        with RunDirectory.open(self.path) as directory:
            config = resumed_config(directory, lambda base: with_settings(settings, base), fixed)
        if wait:
            return _in_this_process(config, self.path, show, callbacks)
        _check_background(config, callbacks)
        flags = [argument for name, value in settings.items() for argument in _flag(name, value)]
        return Run(self.path, process=Background(self.path, ["--resume", str(self.path), *flags]))

    def evaluate(self, **options: Any) -> Summary:
        """Evaluate this run; see `engram.evaluate`."""
        return evaluate(self.path, **options)

    def agent(self, **options: Any) -> TrainedAgent:
        """Load this run's agent; see `engram.load_agent`."""
        return load_agent(self.path, **options)


def configure(env: Any = None, core: Any = None, **settings: Any) -> RunConfig:
    """Return the full configuration of `train` with these arguments, including presets and defaults.

    Use it to build parts: `configure(...).factory().make_actor(0)`, `Learner(agent, configure(...).learner, ...)`.

    Raises:
        ValueError: unknown setting or invalid value; the message lists allowed values and similar names.
    """
    chosen = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    for name, value in (("env", env), ("core", core)):
        expected = "a name, module:Class or a class"
        refuse(not isinstance(value, str | type | None), f"{name} is {value!r}; expected {expected}")
        if isinstance(value, type):
            nested = f"{value.__qualname__} is a nested class; expected: a class at the top level of a module"
            refuse("." in value.__qualname__, nested)
            value = f"{value.__module__}:{value.__name__}"
        chosen |= {} if value is None else {name: value}
    address = chosen.get("ray_address")
    refuse(address is not None and chosen.get("local"), f"ray_address is {address!r}; allowed: with local=False")
    return with_settings(chosen)


def train(
    env: Any = None,
    core: Any = None,
    *,
    wait: bool = True,
    show: bool = True,
    local: bool = True,
    on_row: Callable[[dict[str, float]], Any] | None = None,
    on_update: Callable[[Update], Any] | None = None,
    on_checkpoint: Callable[[Path], Any] | None = None,
    **settings: Any,
) -> Run:
    """Train an agent with memory.

    Trains in this process, with the same results as `rl-train`; with `wait=False` in a separate process, since
    training alongside the caller's code would share its interpreter, torch's threads and random numbers. Both modes
    restore this process's signal handlers, threads, random states and environment variables at the end. Ctrl-C ends
    the run with a checkpoint and returns it.

    Args:
        env: environment: short name, Gymnasium id, "module:Class", or a class; None for the default.
        core: memory core: registered name, "module:Class", or a class; None for the default.
        wait: whether to wait for the end of the run; otherwise returns when training begins, for `progress()`,
            `stop()` and `wait()` of the result. The run ends with a checkpoint when this process ends.
        show: show progress, in a terminal or a notebook.
        local: act in the learner's process; False uses Ray.
        on_row: called with every row of metrics by name, and `step`. A callback that returns True ends the run with
            a checkpoint; so does an exception, which is raised here. Callbacks require `wait=True`.
        on_update: called after every update with an `Update`: step, member, learner, agent, batch, path. May return
            metrics for the next row, {name: value}.
        on_checkpoint: called with the directory of every checkpoint.
        **settings: `rl-train`'s flags by name: preset="easy", total_steps=1_000_000, lr=1e-3, run_dir="runs/mine",
            env_args={...}, core_args={...}, population=4, pbt={"interval": 500}.

    Returns:
        The run.

    Raises:
        ValueError: unknown setting or invalid value; the message lists allowed values and similar names.
        ActorFailureError: an environment or a core failed too often.
    """
    config = configure(env, core, local=local, **settings)
    refuse_taken(config.checkpoint_url)
    callbacks = Callbacks(on_row=on_row, on_update=on_update, on_checkpoint=on_checkpoint)
    if wait:
        return _in_this_process(config, None, show, callbacks)
    _check_background(config, callbacks)
    refuse_unusable(config.run_dir)
    path = Path(config.run_dir) if config.run_dir else new_path(config.name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / CONFIG
        file.write_bytes(as_toml(to_dict(config) | {"run_dir": None}))
        arguments = ["--config", str(file), "--run-dir", str(path)]
        if config.checkpoint_url:  # saved without its secrets
            arguments += ["--checkpoint-url", config.checkpoint_url]
        return Run(path, process=Background(path, arguments))


def _check_background(config: RunConfig, callbacks: Callbacks) -> None:
    refuse(callbacks, "wait is False; expected wait=True with on_row, on_update and on_checkpoint")
    main = [name for name in (config.env, config.agent.core, config.learner.algorithm) if name.startswith("__main__:")]
    if main:
        raise EngramError(f"{main[0]} exists only in this process; allowed with wait=False: a class in a module")


def _flag(name: str, value: Any) -> list[str]:
    """Convert a setting of `resume` to arguments of `rl-train`."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        group, dot, last = flag.rpartition(".")
        return [f"--{flag}" if value else f"--{group}{dot}no-{last}"]
    return [f"--{flag}", str(value)]


def _in_this_process(config: RunConfig, path: Path | None, show: bool, callbacks: Callbacks) -> Run:
    main_thread = threading.current_thread() is threading.main_thread()
    stop = StopFlag((signal.SIGINT,) if main_thread else ())
    environment = dict(os.environ)
    if not config.in_process:
        import ray  # it changes environment variables and extends sys.path

        refuse(ray.is_initialized(), "Ray is already initialized in this process; allowed: local=True or wait=False")
    with settings_of_a_command(), ExitStack() as stack:
        directory = None if path is None else stack.enter_context(RunDirectory.open(path))
        try:
            outcome = train_here(config, directory, stop, show=show, callbacks=callbacks)
        finally:
            os.environ.clear()
            os.environ.update(environment)
            if not config.in_process:
                from ..cluster.ray_session import end_clean_ups

                end_clean_ups()
    if outcome.failure:
        raise outcome.failure
    if outcome.path is None:
        raise KeyboardInterrupt
    return Run(outcome.path, reason=outcome.reason)
