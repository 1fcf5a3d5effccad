"""`--track mlflow`: a run at MLFLOW_TRACKING_URI, in the experiment `engram`."""

import importlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.settings.plain import flat_settings
from .tracker import Tracker

try:
    mlflow: Any = importlib.import_module("mlflow")
except ImportError as problem:
    raise ImportError(f"{problem}; pip install mlflow-skinny") from problem


class MLflow(Tracker):
    """Metrics by step, and the configuration as parameters; a resumed run continues the one in its `.mlflow-id`."""

    def __init__(self, run: Path, *, name: str, group: str | None, config: dict[str, Any]) -> None:
        self._api, file = mlflow.MlflowClient(), run / ".mlflow-id"
        if not file.exists():
            experiment, tags = mlflow.set_experiment("engram").experiment_id, {"group": group} if group else {}
            file.write_text(self._api.create_run(experiment, run_name=name, tags=tags).info.run_id)
            parameters = [mlflow.entities.Param(name, str(value)) for name, value in flat_settings(config)]
            self._api.log_batch(file.read_text(), params=parameters)
        self._run = file.read_text()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        mlflow.log_metrics(values, step=step, run_id=self._run)

    def video(self, step: int, name: str, gif: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"{step}.gif").write_bytes(gif)
            self._api.log_artifacts(self._run, folder, name)

    def close(self) -> None:
        self._api.set_terminated(self._run)
