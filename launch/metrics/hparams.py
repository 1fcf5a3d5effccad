"""A run in TensorBoard's HPARAMS tab: one row of settings, and the table's columns.

TensorBoard shows the columns listed by the first run of a folder for all runs in it. So every run lists the same
columns, and none removes another's: a free dict such as `agent.core_args` is one column of text.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

from ...learners.algorithms.registry import algorithm_class, algorithm_names
from ..run.config import PASSIVE
from ..run.settings.plain import flat_settings

FIRST = ("learner.lr", "learner.entropy_cost", "seed")
"""Settings whose columns come first, in TensorBoard's order: alphabetical."""
METRICS = ("episode/return", "episode/length", "episode/solved", "eval/return", "perf/env_steps_per_second")
"""Metrics whose last values are columns."""
LEFT_OUT = {*PASSIVE, "run_dir"} - {*FIRST}
_ALGORITHM = "learner.algorithm_args"
_api: Any = api_pb2  # protobuf creates these classes at import, invisible to type checkers
_data: Any = plugin_data_pb2


def row(config: Any) -> dict[str, bool | float | str]:
    """Settings of a configuration dataclass by dotted name; numeric settings of an algorithm also by their own name."""
    settings = {name: x for name, x in flat_settings(config, whole=True) if name not in LEFT_OUT}
    settings |= {f"{_ALGORITHM}.{key}": x for key, x in settings.get(_ALGORITHM, {}).items()}
    return {name: x if isinstance(x, bool | int | float) else _text(x) for name, x in settings.items()}


def session(config: Any) -> Any:
    """Summary metadata of a run's row."""
    started = _data.SessionStartInfo()
    for name, value in row(config).items():
        kind = "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
        setattr(started.hparams[name], f"{kind}_value", value)
    return _metadata(session_start_info=started)


def columns(config: Any, compared: Sequence[str] = ()) -> Any:
    """Summary metadata of the columns of a training run; `compared` names settings that come first as well.

    Args:
        config: the run's configuration; only its type and the settings of its algorithm matter.
        compared: settings that differ between the members of a population, such as `learner.lr` or
            `learner.gae_lambda`.
    """
    every = row(config)
    registered = {
        f"{_ALGORITHM}.{each.name}" for name in algorithm_names() for each in fields(algorithm_class(name).Settings)
    }
    first = {*FIRST, *(name if name in every else name.replace("learner", _ALGORITHM, 1) for name in compared)}
    infos = [
        _api.HParamInfo(name=name, type=_type(every.get(name, 0.0)), differs=name in first)
        for name in sorted(registered | every.keys())
    ]
    tags = [*METRICS, *(f"population/{name}" for name in compared)]
    metrics = [_api.MetricInfo(name=_api.MetricName(tag=tag)) for tag in tags]
    return _metadata(experiment=_api.Experiment(hparam_infos=infos, metric_infos=metrics))


SESSION_TAG, COLUMNS_TAG = metadata.SESSION_START_INFO_TAG, metadata.EXPERIMENT_TAG


def _metadata(**content: Any) -> Any:
    return metadata.create_summary_metadata(_data.HParamsPluginData(**content))


def _type(value: bool | float | str) -> Any:
    kind = "BOOL" if isinstance(value, bool) else "STRING" if isinstance(value, str) else "FLOAT64"
    return getattr(_api, f"DATA_TYPE_{kind}")


def _text(value: Any) -> str:
    return " ".join(f"{key}={x}" for key, x in value.items()) if isinstance(value, dict) else str(value)
