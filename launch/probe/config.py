"""The configuration of a probe, and default settings for a task and a core."""

from dataclasses import dataclass, field, replace
from typing import Any

import tyro
from tyro.conf import OmitArgPrefixes

from ...agents.cores.registry import core_class
from ...base.errors import EngramError
from ...base.messages import SEEDS
from ...base.settings import Settings, setting
from ...base.units import Minutes, Seconds
from ...envs.tasks.registry import find_task
from ...learners.supervised import SupervisedConfig
from ..config.device import check_device


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(Settings):
    """One memory core on one task."""

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
    start_from: str | None = None
    """Run directory of another probe that provides the initial weights, such as one on an easier task."""
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
        if not self.minutes and not self.updates:
            raise EngramError("minutes is 0 and updates is 0; expected: one of them above 0, so that training ends")


BY_TASK: dict[str, dict[str, Any]] = {
    "vectors:NthFarthest": {"batch_size": 128, "head_layers": 4},
    "execute:Execute": {"batch_size": 128, "head_layers": 4},
    "symbols:Dictionary": {"batch_size": 32},
    "temporal_order:TemporalOrder": {"batch_size": 32, "bptt_length": 4},
}
"""Settings of the papers' recipes that differ from the defaults, by class of task. The first two papers have batches of
1600 and 128 sequences, and heads with four hidden layers of 256 units."""


def recipe(task: str, core: str) -> ProbeConfig:
    """Default settings for a core on a task. Raises ValueError with the nearest names for an unknown one."""
    entry, _ = find_task(task)
    settings = BY_TASK.get(entry.place, {}) | {"lr": core_class(core).supervised_lr}
    return ProbeConfig(task=task, core=core, learner=replace(SupervisedConfig(), **settings))
