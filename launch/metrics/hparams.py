"""A run in TensorBoard's HPARAMS tab: one row of settings, and the table's columns.

TensorBoard shows the columns listed by the first run of a folder for all runs in it. So every run lists the same
columns, and none hides another's: a free-form dict such as `agent.core_args` is one column of text.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from torch.utils.tensorboard.summary import hparams

from ...learners.algorithms.registry import algorithm_class, algorithm_names
from ..config.run_config import PASSIVE
from ..config.settings.plain import flat_settings

METRICS = ("episode/return", "episode/length", "episode/solved", "eval/return", "perf/env_steps_per_second")
"""Metrics whose last values are columns."""
LEFT_OUT = {*PASSIVE, "run_dir"} - {"seed"}
_ALGORITHM = "learner.algorithm_args"


def row(config: Any) -> dict[str, float | str]:
    """Settings of a configuration dataclass by dotted name; the algorithm's settings are also listed individually."""
    settings = {name: x for name, x in flat_settings(config, whole=True) if name not in LEFT_OUT}
    settings |= {f"{_ALGORITHM}.{key}": x for key, x in settings.get(_ALGORITHM, {}).items()}
    return {name: x if isinstance(x, int | float) else _text(x) for name, x in settings.items()}


def summaries(config: Any, compared: Sequence[str] | None) -> list[Any]:
    """A run's row, and the columns of a training run.

    Args:
        compared: settings of a training run that differ between the members of a population; None writes no columns.
    """
    values = row(config)
    _, session, _ = hparams(values, {})
    if compared is None:
        return [session]
    registered = {
        f"{_ALGORITHM}.{setting.name}": 0.0
        for name in algorithm_names()
        for setting in fields(algorithm_class(name).Settings)
    }
    tags = dict.fromkeys([*METRICS, *(f"population/{name}" for name in compared)], 0)
    columns, _, _ = hparams(registered | values, tags)
    return [session, columns]


def _text(value: Any) -> str:
    return " ".join(f"{key}={x}" for key, x in value.items()) if isinstance(value, dict) else str(value)
