"""The HPARAMS tab of TensorBoard, as TensorBoard itself reads it from the files of several runs."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups

from engram.launch.config.plain import from_dict
from engram.launch.config.run_config import RunConfig
from engram.launch.config.run_flags import preset
from engram.launch.metrics.writer import MetricsWriter
from engram.launch.probe.command import ProbeConfig


def write(run: Path, config: Any, result: float = 1.0) -> None:
    with MetricsWriter(run, 0) as writer:
        writer.hparams(config)
        writer.write(10, {"episode/return": result})


def table(folder: Path) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Columns of the tab from left to right, and of every run its values."""
    runs = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(folder))
    runs.Reload()
    provider: Any = data_provider.MultiplexerDataProvider(runs, str(folder))
    flags: Any = argparse.Namespace(generic_data="true")
    backend: Any = backend_context.Context(
        base_plugin.TBContext(data_provider=provider, logdir=str(folder), flags=flags)
    )
    request: Any = RequestContext()
    api: Any = api_pb2
    experiment = get_experiment.Handler(request, backend, "", api.GetExperimentRequest()).run()
    columns = [info.name for info in experiment.hparam_infos]
    infos = [api.ColParams(hparam=name, include_in_result=True) for name in columns]
    statuses = [api.STATUS_UNKNOWN, api.STATUS_RUNNING, api.STATUS_SUCCESS, api.STATUS_FAILURE]
    asked = api.ListSessionGroupsRequest(start_index=0, slice_size=100, allowed_statuses=statuses, col_params=infos)
    asked.aggregation_type = api.AGGREGATION_AVG
    listed = list_session_groups.Handler(request, backend, "", asked).run()
    rows = {
        each.name.partition("/")[0]: dict(group.hparams) for group in listed.session_groups for each in group.sessions
    }
    return columns, rows


LSTM = preset("paper", "t-maze", "lstm")
PPO = from_dict(RunConfig, {"env": "t-maze", "agent": {"core": "rmc"}, "learner": {"algorithm": "ppo", "lr": 0.25}})
SAME = from_dict(RunConfig, {"env": "t-maze", "population": 3})
VARIED = from_dict(
    RunConfig, {"env": "t-maze", "population": 2, "pbt": {"explore": ("learner.clip_rho=uniform(1,2)",)}}
)


@pytest.mark.parametrize("first", ["lstm", "ppo", "same", "varied"])
def test_no_run_removes_the_columns_of_another(tmp_path: Path, first: str) -> None:
    runs = {"lstm": LSTM, "ppo": PPO, "same": SAME, "varied": VARIED}
    for name, config in runs.items():
        place = tmp_path / ("0-first" if name == first else name)
        write(place, replace(config, learner=config.learner.resolved()))
    columns, rows = table(tmp_path)
    assert len(rows) == len(runs)
    for values in rows.values():
        assert not values.keys() - set(columns)
    assert {"learner.algorithm_args.gae_lambda", "learner.algorithm_args.clip_rho"} <= set(columns)
    assert "learner.algorithm_args.gae_lambda" not in rows["0-first" if first == "lstm" else "lstm"]


def test_settings_are_columns(tmp_path: Path) -> None:
    write(tmp_path / "plain" / "run", PPO)
    columns, rows = table(tmp_path / "plain")
    assert {"learner.entropy_cost", "learner.lr", "seed"} <= set(columns)
    assert "run_dir" not in columns
    assert rows["run"]["learner.lr"].number_value == 0.25


def test_probes_have_columns_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "probe", ProbeConfig(core="gru"))
    columns, rows = table(tmp_path)
    assert {"task", "core", "learner.lr", "seed"} <= set(columns)
    assert rows["probe"]["core"].string_value == "gru"
