"""`--track wandb`: every row of metrics also goes to Weights & Biases, by the same names.

The package comes with `pip install "engram-rl[wandb]"` and is imported when it is used. WANDB_MODE=offline keeps all of
it in the run directory, to be sent later with `wandb sync`. Losing the service costs one warning, never the run.
"""

import importlib
import math
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..run.command_line import UsageError

ID = ".wandb-id"
"""File in a run directory that holds the name of the run at W&B, so that a resumed run goes on there."""
PROJECT = "engram"


class Tracker:
    """A run at W&B.

    Args:
        run: the run's directory, or a member's.
        name: what it is called there.
        group: other runs of the same group are shown together with it.
        config: the run's configuration, nested dicts.
        report: where the warning goes.

    Raises:
        UsageError: wandb is not installed, or refuses to start.
    """

    def __init__(
        self, run: Path, *, name: str, group: str | None, config: dict[str, Any], report: Callable[[str], None]
    ) -> None:
        self._report, self._warned = report, False
        wandb = _wandb()
        try:
            self._run: Any = wandb.init(
                project=PROJECT,
                name=name,
                group=group,
                id=_identity(run),
                resume="allow",
                dir=str(run),
                config=config,
                reinit="create_new",
                settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
            )
            self._run.define_metric("step")
            self._run.define_metric("*", step_metric="step")
        except Exception as problem:  # it has errors of many kinds, all of which say what to do
            raise UsageError(
                f"track is 'wandb', but: {problem}; without an account: WANDB_MODE=offline in the environment"
            ) from problem

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One row."""
        finite = {name: x for name, x in values.items() if math.isfinite(x)}
        self._attempt(lambda: self._run.log({"step": step, **finite}))

    def close(self) -> None:
        """Wait until all is written."""
        self._attempt(lambda: self._run.finish())

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as problem:
            if not self._warned:
                self._warned = True
                self._report(f"W&B does not take the metrics: {problem}; training goes on, metrics.jsonl has them")


def make_tracker(
    service: str | None, directory: Path, folder: Path, config: dict[str, Any], report: Callable[[str], None]
) -> Tracker | None:
    """The tracker that --track asks for.

    Args:
        service: "wandb", or None for none.
        directory: the run's.
        folder: the same, or a member's.
        config: the run's configuration, nested dicts.
        report: where a warning goes.
    """
    if service is None:
        return None
    member = folder != directory
    name = f"{directory.name}-{folder.name}" if member else directory.name
    return Tracker(folder, name=name, group=directory.name if member else None, config=config, report=report)


def check_tracking(service: str | None) -> None:
    """Raise UsageError if the package of a service is not there."""
    if service is not None:
        _wandb()


def _wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError as problem:
        raise UsageError(
            f"track is 'wandb', which needs a package: pip install 'engram-rl[wandb]' ({problem})"
        ) from problem


def _identity(run: Path) -> str:
    run.mkdir(parents=True, exist_ok=True)
    file = run / ID
    if not file.exists():
        file.write_text(secrets.token_hex(8))
    return file.read_text().strip()
