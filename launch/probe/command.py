"""`rl-probe`: train a memory core on a supervised task and test it."""

import json
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Column, Table
from tyro.conf import OmitArgPrefixes

from ...agents.cores.registry import core_class
from ...agents.process import prepare_process
from ...base.errors import SEEDS, refuse, user_errors
from ...base.files import replace_file
from ...base.processes import StopFlag
from ...base.settings import Settings, declared, setting
from ...base.units import Minutes, Seconds
from ...envs.tasks.task import TASKS, Task, examined_on, find_task, make_task, task_parameters
from ...learners import checkpoints
from ...learners.supervised import SequenceModel, SupervisedConfig, SupervisedLearner, examine, to_tensors
from ..config.command_line import dashed, make_console, parse, value_of, without
from ..config.plain import differences, from_dict, to_dict
from ..config.run_config import check_device, find_device
from ..metrics.writer import MetricsWriter
from ..runs.directory import RunDirectory

_HELP = """Train a memory core on a supervised task and test it on new data.

rl-probe TASK [flags]   one core on one task
rl-probe --list         all tasks, with chance and published results
rl-probe --resume RUN   resume a run; --minutes and --updates may increase"""

STOPPED = "stopped"  # First word of the last line of `rl-probe` after an early stop
RESULT = "result.json"
LINE_SECONDS = 10.0  # Seconds between two lines of progress
TEST_BATCH = 128  # Sequences per test batch


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(Settings):
    task: tyro.conf.Suppress[str] = "recall"
    """The task, a name from `rl-probe --list`."""
    core: str = "lstm"
    """Memory core: registered name or module:Class."""
    core_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Options of the core, KEY=VALUE."""
    task_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Parameters of the task, KEY=VALUE."""
    learner: OmitArgPrefixes[SupervisedConfig] = SupervisedConfig()
    """Network around the core, and optimizer."""
    minutes: Minutes = setting(10.0, (0, None), resumable=True)
    """Training time in CPU time (wall time on a GPU) without --updates; a plain number is in minutes."""
    updates: int = setting(0, (0, None), resumable=True)
    """Updates to train for; 0 trains until --minutes are over."""
    seed: int = setting(1, SEEDS)
    """Seed of weights and sequences, 0..2**64-1."""
    device: str = setting("cpu", resumable=True)
    """Device for training: auto (the first GPU, if there is one), cpu, cuda or cuda:N."""
    test_sequences: int = setting(2048, (1, None), resumable=True)
    """Sequences of each test at the end, at least 1."""
    log_every: int = setting(50, (1, None), resumable=True)
    """Updates between two rows of metrics."""
    checkpoint_every: Seconds = setting(60.0, (0, None), resumable=True)
    """Time between checkpoints; a plain number is in seconds."""
    run_dir: str | None = setting(None, resumable=True)
    """Run directory; runs/TASK-CORE-DATE if not given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_device(self.device)
        endless = not self.minutes and not self.updates
        refuse(endless, "minutes is 0 and updates is 0; expected: one of them above 0, so that training ends")


BY_TASK: dict[str, dict[str, Any]] = {
    "symbols:NthFarthest": {"batch_size": 128, "head_layers": 4},
    "symbols:Execute": {"batch_size": 128, "head_layers": 4},
    "symbols:Dictionary": {"batch_size": 32},
    "recall:TemporalOrder": {"batch_size": 32, "bptt_length": 4},
}
"""Settings of the papers' recipes that differ from the defaults, by class of task. The first two papers have batches of
1600 and 128 sequences, and heads with four hidden layers of 256 units."""


def recipe(task: str, core: str) -> ProbeConfig:
    """Default settings for a core on a task. Raises ValueError for an unknown one."""
    entry, _ = find_task(task)
    settings = BY_TASK.get(entry.place, {}) | {"lr": core_class(core).supervised_lr}
    return ProbeConfig(task=task, core=core, learner=replace(SupervisedConfig(), **settings))


class ProbeRun:
    """A probe in progress. Raises EngramError for unknown names and invalid values."""

    def __init__(self, config: ProbeConfig, show: Callable[[str], None]) -> None:
        self.config, self.show = config, show
        self.device = find_device(config.device)
        with user_errors():
            self.task: Any = make_task(config.task, config.learner.batch_size, config.task_args, seed=config.seed)
            torch.manual_seed(config.seed)
            model = SequenceModel(self.task, config.core, config.core_args, config.learner).to(self.device)
            fresh = partial(make_task, config.task, TEST_BATCH, seed=config.seed)
            self.valid = fresh(config.task_args, part="valid")
            tests = examined_on(config.task, config.task_args)
            self.tests = [(label, fresh(parameters, part="test")) for label, parameters in tests]
        self.learner = SupervisedLearner(model, config.learner, self.task.stream)
        self.trained = 0.0  # Seconds of training that count toward the budget
        self._row: dict[str, list[float]] = {}

    @property
    def steps(self) -> int:
        return self.learner.updates * self.task.steps * self.task.num_sequences

    def restore(self, directory: RunDirectory) -> None:
        if newest := checkpoints.latest(directory.checkpoints):
            saved = checkpoints.load(newest)
            self.learner.load_state_dict(saved["learner"])
            self.task.restore(saved["task"])
            self.trained, self._row = saved["trained"], {k: list(v) for k, v in saved["row"].items()}

    def train(self, directory: RunDirectory, stop: StopFlag) -> str:
        """Train until the budget is spent or `stop` is set; return the reason for the end."""
        last_line = last_save = time.monotonic()
        with MetricsWriter(directory.path, self.steps, self.show) as writer:
            writer.hparams(self.config)
            while not (reason := stop.reason or ("done" if self._is_done() else "")):
                begun = self._clock()
                metrics = self.learner.step(to_tensors(self.task.next(), self.device))
                self.trained += self._clock() - begun
                for name, value in metrics.items():
                    self._row.setdefault(name, []).append(value)
                if self.learner.updates % self.config.log_every == 0:
                    line = self._write(writer)
                    if time.monotonic() - last_line >= LINE_SECONDS:
                        last_line = time.monotonic()
                        self.show(line)
                if time.monotonic() - last_save >= self.config.checkpoint_every:
                    self._save(directory)
                    last_save = time.monotonic()
            self._save(directory)
        return reason

    def result(self, directory: RunDirectory) -> dict[str, Any]:
        """Test on new data, once; write result.json and return its content."""
        config = self.config
        tests: list[dict[str, Any]] = [
            {"test": label, "chance": task.chance, **self._examine(task)} for label, task in self.tests
        ]
        result = {
            "task": config.task,
            "core": config.core,
            "published": find_task(config.task)[0].published,
            "parameters": sum(p.numel() for p in self.learner.model.core.parameters()),
            "updates": self.learner.updates,
            "minutes": round(self.trained / 60, 3),
            "ms_per_update": round(1000 * self.trained / max(1, self.learner.updates), 3),
            "skipped": self.learner.skipped,
            "valid_accuracy": self._examine(self.valid)["accuracy"],
            **{name: fmean(test[name] for test in tests) for name in ("accuracy", "low", "high", "chance")},
            "tests": tests,
            "config": asdict(config) | {"run_dir": None},
        }
        replace_file(directory.path / RESULT, json.dumps(result, indent=1).encode())
        return result

    def _examine(self, task: Task) -> dict[str, Any]:
        return examine(self.learner.model, task, -(-self.config.test_sequences // TEST_BATCH)).plain()

    def _is_done(self) -> bool:
        if self.config.updates:
            return self.learner.updates >= self.config.updates
        return self.trained >= 60 * self.config.minutes

    def _write(self, writer: MetricsWriter) -> str:
        row = {name: sum(values) / len(values) for name, values in self._row.items()}
        self._row = {}
        row["perf/updates_per_second"] = self.learner.updates / max(self.trained, 1e-9)
        writer.write(self.steps, row)
        accuracy = f", {row['probe/accuracy']:.1%} correct" if "probe/accuracy" in row else ""
        loss = f"loss {row['loss/cross_entropy']:.4f}{accuracy}"
        return f"update {self.learner.updates:,} after {self.trained / 60:.1f} min: {loss}"

    def _save(self, directory: RunDirectory) -> None:
        state = {"learner": self.learner.state_dict(), "task": self.task.save()}
        state |= {"trained": self.trained, "row": self._row}
        checkpoints.save(directory.checkpoints, self.steps, state)
        checkpoints.Kept(directory.checkpoints).prune(1)

    def _clock(self) -> float:
        if self.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.monotonic()


def main(arguments: Sequence[str]) -> int:
    argv = dashed(arguments)
    if argv[:1] == ["--list"]:
        list_tasks(make_console())
        return 0
    if (resume := value_of("--resume", argv)) is None:
        return probe(parsed(argv), None)
    with RunDirectory.open(Path(resume)) as directory:
        return probe(resumed(directory, without(argv, ("--resume",))), directory)


def parsed(arguments: Sequence[str]) -> ProbeConfig:
    if not arguments or arguments[0].startswith("-"):
        missing = not {"--help", "-h"} & set(arguments)
        refuse(missing, "the task is missing; expected: rl-probe TASK or rl-probe --list")
        return parse(ProbeConfig, arguments, "rl-probe", _HELP)
    with user_errors():
        default = recipe(arguments[0], value_of("--core", arguments) or ProbeConfig.core)
    return parse(ProbeConfig, arguments[1:], "rl-probe", _HELP, default=default, other_flags=("--list", "--resume"))


def resumed(directory: RunDirectory, arguments: Sequence[str]) -> ProbeConfig:
    with user_errors(f"{directory.path / 'config.toml'} is not the configuration of a probe"):
        saved = {name: value for name, value in directory.config().items() if name != "start_from"}  # once a setting
        old: ProbeConfig = from_dict(ProbeConfig, saved)
    new = parse(ProbeConfig, arguments, "rl-probe", _HELP, default=old, other_flags=("--resume",))
    allowed = sorted(declared(new, "resumable"))
    for name, before, after in differences(old, new):
        message = f"{directory.path} was trained with {name} = {before!r}, not {after!r}"
        refuse(name not in allowed, f"{message}; --resume can change: {', '.join(allowed)}")
    return new


def probe(config: ProbeConfig, directory: RunDirectory | None) -> int:
    """Train, test and print the result, in a new or an existing run directory."""
    prepare_process(1)
    show = partial(make_console().print, soft_wrap=True)
    run = ProbeRun(config, show)
    if directory is None:
        name = f"{config.task}-{config.core}".replace("/", "-").replace(":", "-")
        directory = RunDirectory.create(config.run_dir, to_dict(config), name=name)
    else:
        run.restore(directory)
        directory.rewrite_config(to_dict(config))
    with directory, StopFlag() as stop:
        reason = run.train(directory, stop)
        if reason != "done":
            show(f"{STOPPED} ({reason}); resume with: rl-probe --resume {shlex.quote(str(directory.path))}")
            return 0
        result = run.result(directory)
    show(
        f"{result['task']} with {result['core']} ({result['parameters']:,} parameters in the core): "
        f"{result['updates']:,} updates in {result['minutes']:.1f} min, {result['ms_per_update']:.1f} ms each"
    )
    if result["skipped"]:
        show(f"  {result['skipped']:,} updates were skipped: their loss was not finite (try a smaller --lr)")
    for test in result["tests"]:
        show(
            f"  {test['test'] or 'fresh data':<18} {test['accuracy']:7.2%} correct "
            f"({test['low']:.1%}..{test['high']:.1%}), {test['perfect']:.1%} of sequences without an error"
        )
    show(f"  chance     {result['chance']:7.2%}\n  published  {result['published']}\n  directory  {directory.path}")
    return 0


def list_tasks(console: Console) -> None:
    columns = ("task", "source", "question", "chance", "published", "--task-args")
    table = Table(*(Column(name, overflow="fold") for name in columns), box=None, pad_edge=False)
    for name, entry in TASKS.items():
        fixed = set(find_task(name)[1]) - {"delay", "pairs"}
        parameters = " ".join(key for key in task_parameters(entry) if key not in fixed)
        names = f"{name}\n{name}-twin" if entry.twin else name
        table.add_row(names, entry.family, entry.about, f"{make_task(name, 1).chance:.1%}", entry.published, parameters)
    console.print(table)
