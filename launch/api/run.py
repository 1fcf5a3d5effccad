"""`engram.train` starts a run, `engram.Run` is one: its configuration, metrics, checkpoints, and what to do with it."""

import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...agents.process import settings_of_a_command
from ...base.messages import check_keys
from ...envs.registration import find_world, is_world, world_parameters
from ..evaluate.episodes import Summary
from ..metrics.panel import Panel
from ..metrics.rows import read_log, table_of
from ..run.command_line import UsageError
from ..run.config import RunConfig
from ..run.run_directory import RunDirectory
from ..run.run_flags import with_settings
from ..run.stop_flag import StopFlag
from ..run.trained import run_config
from ..train.callbacks import CHECKPOINT, ROW, UPDATE, Callbacks, Update
from ..train.resume import NO_EFFECT, resumed_config
from .agent import TrainedAgent, load_agent
from .child import Child, Order, sent
from .evaluation import evaluate
from .given import check_parameters, check_path
from .training import Outcome, make_panel, refuse_taken
from .training import train as train_here

Array = NDArray[np.float64]


class Progress(NamedTuple):
    """How far a run is."""

    steps: int
    """Environment steps learnt from, of all members."""
    total_steps: int
    running: bool
    """Whether a process trains it now."""
    metrics: dict[str, float]
    """The last row of metrics (docs/reference/metrics.md)."""

    @property
    def fraction(self) -> float:
        """0..1."""
        return min(self.steps / self.total_steps, 1.0)


class Run:
    """A training run: one that `engram.train` has made, or any run directory.

    Args:
        path: run directory.
        child, outcome: for `engram.train`: the process that trains it, how it has ended.

    Raises:
        ValueError: there is no run.
    """

    def __init__(self, path: str | Path, *, child: Child | None = None, outcome: Outcome | None = None) -> None:
        check_path("path", path)
        self._directory = RunDirectory.open(path, lock=False)
        self.path = self._directory.path
        """The run directory."""
        self._child, self._outcome = child, outcome

    def __repr__(self) -> str:
        now = self.progress()
        running = ", running" if now.running else ""
        return f"Run({str(self.path)!r}): {now.steps:,} of {now.total_steps:,} steps{running}"

    @property
    def config(self) -> RunConfig:
        """The resolved configuration."""
        return run_config(self._directory)

    @property
    def metrics(self) -> dict[str, Array]:
        """Table of every row of metrics: columns [K] by name, nan where a row has no value.

        `step` contains environment steps, `time` seconds since 1970, `wall_s` seconds of training; the other names are
        those in TensorBoard (docs/reference/metrics.md). `pandas.DataFrame(run.metrics)` takes it.
        """
        return table_of(self._rows())

    @property
    def checkpoints(self) -> list[Path]:
        """Directories of the checkpoints, oldest first."""
        return sorted(path for path in self._directory.checkpoints.glob("step-*") if path.name[5:].isdigit())

    @property
    def reason(self) -> str:
        """Why it ended: "done", "time limit", "SIGINT", "stop()"; empty while it runs or if it was only opened."""
        return self._outcome.reason if self._outcome else ""

    def progress(self) -> Progress:
        """How far it is now."""
        config = self.config
        total = config.total_steps * config.num_members
        if self._child is not None and self._child.running:
            return Progress(self._child.step, total, True, dict(self._child.metrics))
        rows = self._rows()
        steps = [rows[-1]["step"]] if rows else []
        steps += [int(path.name[5:]) for path in self.checkpoints]
        last = {name: np.nan if x is None else x for name, x in rows[-1]["metrics"].items()} if rows else {}
        return Progress(max(steps, default=0), total, self._directory.in_use, last)

    def stop(self) -> "Run":
        """End a run of `train(wait=False)` with a checkpoint; returns when it has ended. Nothing if it has already."""
        if self._child is not None:
            self._child.stop()
            return self.wait()
        if self._directory.in_use:
            raise ValueError(f"{self.path} is trained by another process; allowed: stop() of the Run that started it")
        return self

    def wait(self) -> "Run":
        """Wait for the end of a run of `train(wait=False)`; Ctrl-C ends it with a checkpoint. Raises what ended it."""
        if self._child is not None:
            _join(self._child)
            self._outcome, self._child = self._child.result(), None
        return self

    def resume(self, *, wait: bool = True, show: bool = True, **settings: Any) -> "Run":
        """Go on from the newest checkpoint.

        Args:
            wait: return when it has ended; else at once, see `engram.train`.
            show: draw progress.
            **settings: what may change within a run, such as total_steps=2_000_000, by the names of `rl-train`'s flags;
                and on_row, on_update, on_checkpoint as in `engram.train`.
        """
        callbacks = Callbacks(**{name: settings.pop(name, None) for name in (ROW, UPDATE, CHECKPOINT)})
        fixed = [name for flag in NO_EFFECT if (name := flag.strip("-").replace("-", "_")) in settings]
        with RunDirectory.open(self.path) as directory:
            config = resumed_config(directory, lambda base: with_settings(settings, base), fixed)
        return _start(config, self.path, wait=wait, show=show, callbacks=callbacks)

    def evaluate(self, **options: Any) -> Summary:
        """`engram.evaluate` of this run."""
        return evaluate(self.path, **options)

    def agent(self, **options: Any) -> TrainedAgent:
        """`engram.load_agent` of this run."""
        return load_agent(self.path, **options)

    def _rows(self) -> list[Mapping[str, Any]]:
        """Rows of metrics."""
        return read_log(self._directory.metrics_file)


def configure(env: Any = None, core: Any = None, **settings: Any) -> RunConfig:
    """The configuration that `train` with the same arguments runs, with everything that presets and defaults say.

    It is what the parts take: `configure(...).factory().make_actor(0)`, `Learner(agent, configure(...).learner, ...)`.

    Raises:
        ValueError: an unknown setting or value; the message names what is allowed and the nearest name.
    """
    for name, value in (("env", env), ("core", core)):
        if not isinstance(value, str | type | None):
            raise UsageError(f"{name} is {value!r}; expected a name, module:Class or a class")
    if settings.get("config") is not None:
        check_path("config", settings["config"])
    for name in ("env_args", "core_args", "algorithm_args"):
        check_parameters(name, settings.get(name))
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    given = settings | {name: _named(value) for name, value in (("env", env), ("core", core)) if value is not None}
    if given.get("ray_address") is not None and given.get("local"):
        raise UsageError(f"ray_address is {given['ray_address']!r}; allowed: with local=False")
    config = with_settings(given)
    if is_world(config.env):  # of another one only making it tells what it takes
        try:
            check_keys(config.env, "parameter", config.env_args, world_parameters(find_world(config.env)[0]))
        except ValueError as problem:
            raise UsageError(str(problem)) from problem
    return config


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

    In this process, without Ray, as `rl-train --local` does and with the same numbers; with `wait=False` or
    `local=False` in a process of its own, since training beside the caller's code would share its interpreter, torch's
    threads and random numbers, and Ray changes the process that it is started in. Either way this process is afterwards
    as it was: signal handlers, threads, random numbers, environment variables. Ctrl-C ends the run with a checkpoint,
    and it is returned.

    Args:
        env: world: short name, Gymnasium id, "module:Class", or a class; None for the default.
        core: memory core: registered name, "module:Class", or a class; None for the default.
        wait: return when the run has ended; else when it begins to train, to be followed by `progress()`, `stop()` and
            `wait()` of the result. It ends with a checkpoint when this process does.
        show: draw progress, in a terminal or a notebook.
        local: act in the learner's process; False uses Ray.
        on_row: called with every row of metrics by name, and `step`. A callback that returns True ends the run with a
            checkpoint, as an exception does, which is then raised here. Callbacks need `wait=True`.
        on_update: called after every update with an `Update`: step, member, learner, agent, batch, path. May return
            metrics for the next row, {name: value}. With `local=False` it is a function of a module, called in the
            training process; the other two are called in this one.
        on_checkpoint: called with the directory of every checkpoint.
        **settings: `rl-train`'s flags by name: preset="easy", total_steps=1_000_000, lr=1e-3, run_dir="runs/mine",
            env_args={...}, core_args={...}, population=4, pbt={"interval": 500}.

    Returns:
        The run.

    Raises:
        ValueError: an unknown setting or a value that is not allowed; the message names the nearest.
        ActorFailureError: a world or a core failed too often.
    """
    config = configure(env, core, local=local, **settings)
    refuse_taken(config.checkpoint_url)
    callbacks = Callbacks(on_row=on_row, on_update=on_update, on_checkpoint=on_checkpoint)
    return _start(config, None, wait=wait, show=show, callbacks=callbacks)


def _start(config: RunConfig, path: Path | None, *, wait: bool, show: bool, callbacks: Callbacks) -> Run:
    """Train in this process if the caller waits and needs no Ray, else in another."""
    if wait and config.local:
        return _in_this_process(config, path, show, callbacks)
    if callbacks and not wait:
        raise UsageError("wait is False; expected wait=True with on_row, on_update and on_checkpoint")
    main = [each for each in (config.env, config.agent.core, config.learner.algorithm) if each.startswith("__main__:")]
    if main:
        raise UsageError(
            f"{main[0]} is known to this process only; allowed with wait=False or Ray: a class in a module"
        )
    child = Child(Order(config, path, False, "", sys.path, sent(callbacks)), callbacks)
    if wait:
        panel = make_panel(config, path, 0) if show else Silent(config)
        with panel:
            _join(child, panel)
    else:
        _join(child, until=lambda: child.training)
    if wait or not child.running:
        return _ended(child.result())
    assert child.path is not None
    return Run(child.path, child=child)


def _in_this_process(config: RunConfig, path: Path | None, show: bool, callbacks: Callbacks) -> Run:
    hears = threading.current_thread() is threading.main_thread()
    stop = StopFlag((signal.SIGINT,) if hears else ())
    with settings_of_a_command(), nullcontext() if path is None else RunDirectory.open(path) as directory:
        panel = make_panel if show else lambda *_: Silent(config)
        outcome = train_here(config, directory, stop, show=panel, callbacks=callbacks)
    if outcome.failure:
        raise outcome.failure
    return _ended(outcome)


def _ended(outcome: Outcome) -> Run:
    if outcome.path is None:
        raise KeyboardInterrupt
    return Run(outcome.path, outcome=outcome)


def _join(child: Child, panel: Panel | None = None, until: Any = lambda: False) -> None:
    """Wait for a child; Ctrl-C asks it to stop, a second one is not held up."""
    shown, phase = 0, ""

    def look() -> None:
        nonlocal shown, phase
        if panel is None:
            return
        for text in child.messages[shown:]:
            panel.message(text)
            shown += 1
        panel.run_path = child.path
        if child.phase != phase:
            phase = child.phase
            panel.phase(phase)
        if child.step:
            panel.update(child.step, child.metrics)

    try:
        child.join(look, until)
    except BaseException as problem:  # Ctrl-C, or what a callback has raised
        child.stop()
        child.join(look)
        if not isinstance(problem, KeyboardInterrupt):
            raise
    look()


class Silent(Panel):
    """A panel that shows nothing."""

    ticks = False

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config.total_steps, None, config.name)
        self._live = None

    def message(self, text: str) -> None:
        """Nothing."""

    def __exit__(self, *_: object) -> None:
        """Nothing is drawn."""


def _named(thing: Any) -> Any:
    """A class as `module:Class`."""
    if not isinstance(thing, type):
        return thing
    if "." in thing.__qualname__:
        raise UsageError(f"{thing.__qualname__} is defined inside of something; expected: a class at a module's top")
    return f"{thing.__module__}:{thing.__name__}"
