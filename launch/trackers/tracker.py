"""`--track NAME`: every row of metrics and every video also goes to a tracker: a built-in one, an entry point in the
group `engram.trackers`, or `module:Class`. A failing tracker causes one warning but never ends the run."""

import importlib
import io
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...base.errors import EngramError, library_errors
from ...base.registry import Registry
from ..config.plain import flat_settings


class Tracker:
    """Base class of trackers; a subclass overrides `write`, and others if needed. `run` is an existing directory, of
    the run or a member; `name` is for the service, `group` for all members of a population (None for a single
    learner); `config` is the run's configuration as nested dicts of plain values."""

    def __init__(self, run: Path, *, name: str, group: str | None, config: dict[str, Any]) -> None: ...

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record one row: finite metrics by name, after `step` environment steps."""
        raise NotImplementedError

    def video(self, step: int, name: str, gif: bytes) -> None:
        """Record a video, a file in GIF format."""

    def close(self) -> None:
        """Wait until all is written."""


class WandB(Tracker):
    """A run at Weights & Biases; a resumed run continues the one in its `.wandb-id`. WANDB_MODE=offline stores
    everything in the run directory, for `wandb sync`."""

    def __init__(self, run: Path, *, name: str, group: str | None, config: dict[str, Any]) -> None:
        self._wandb, file = importlib.import_module("wandb"), run / ".wandb-id"
        if not file.exists():
            file.write_text(secrets.token_hex(8))
        self._run: Any = self._wandb.init(
            project="engram",
            name=name,
            group=group,
            id=file.read_text().strip(),
            resume="allow",
            dir=str(run),
            config=config,
            reinit="create_new",
            settings=self._wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def video(self, step: int, name: str, gif: bytes) -> None:
        self._run.log({"step": step, name: self._wandb.Video(io.BytesIO(gif), format="gif")})

    def close(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """A run at MLFLOW_TRACKING_URI, in the experiment `engram`, with the configuration as parameters; a resumed run
    continues the one in its `.mlflow-id`."""

    def __init__(self, run: Path, *, name: str, group: str | None, config: dict[str, Any]) -> None:
        self._mlflow, file = importlib.import_module("mlflow"), run / ".mlflow-id"
        self._api = self._mlflow.MlflowClient()
        if not file.exists():
            experiment, tags = self._mlflow.set_experiment("engram").experiment_id, {"group": group} if group else {}
            file.write_text(self._api.create_run(experiment, run_name=name, tags=tags).info.run_id)
            parameters = [self._mlflow.entities.Param(key, str(value)) for key, value in flat_settings(config)]
            self._api.log_batch(file.read_text(), params=parameters)
        self._run = file.read_text()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(values, step=step, run_id=self._run)

    def video(self, step: int, name: str, gif: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"{step}.gif").write_bytes(gif)
            self._api.log_artifacts(self._run, folder, name)

    def close(self) -> None:
        self._api.set_terminated(self._run)


_PACKAGES = {"wandb": "engram-rl[wandb]", "mlflow": "mlflow-skinny"}  # What to install for a built-in tracker
_REGISTRY = Registry("tracker", Tracker, {"wandb": ".tracker:WandB", "mlflow": ".tracker:MLflow"}, __package__)


def tracker_class(name: str) -> type[Tracker]:
    """Find a tracker class by registered name or `module:Class`. Raises EngramError with the nearest names."""
    if name in _PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as problem:
            needed = f"track is {name!r}, which needs a package: pip install '{_PACKAGES[name]}' ({problem})"
            raise EngramError(needed) from problem
    return _REGISTRY.find(name)


def make_tracker(name: str, directory: Path, folder: Path, config: dict[str, Any]) -> Tracker:
    """Make the tracker of a learner whose metrics are in `folder`. Raises EngramError if it cannot start."""
    folder.mkdir(parents=True, exist_ok=True)
    member = f"-{folder.name}" if folder != directory else ""
    # Services raise many kinds of exceptions, whose messages name the remedy.
    with library_errors(f"track is {name!r}, but", Exception):
        group = directory.name if member else None
        return tracker_class(name)(folder, name=directory.name + member, group=group, config=config)
