"""`--track wandb`: Weights & Biases.

WANDB_MODE=offline stores everything in the run directory, for a later `wandb sync`.
"""

import importlib
import io
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tracker import Tracker

ID = ".wandb-id"  # File in a run directory with the id of its W&B run, which a resumed run continues
PROJECT = "engram"
wandb: Any = importlib.import_module("wandb")


class WandB(Tracker):
    """A run at W&B."""

    def __init__(self, run: Path, *, name: str, group: str | None, config: dict[str, Any]) -> None:
        file = run / ID
        if not file.exists():
            file.write_text(secrets.token_hex(8))
        try:
            self._run: Any = wandb.init(
                project=PROJECT,
                name=name,
                group=group,
                id=file.read_text().strip(),
                resume="allow",
                dir=str(run),
                config=config,
                reinit="create_new",
                settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
            )
            self._run.define_metric("step")
            self._run.define_metric("*", step_metric="step")
        except Exception as problem:
            raise RuntimeError(f"{problem}; without an account: WANDB_MODE=offline in the environment") from problem

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log({"step": step, **values})

    def video(self, step: int, name: str, gif: bytes) -> None:
        """Log a video to the media panel."""
        self._run.log({"step": step, name: wandb.Video(io.BytesIO(gif), format="gif")})

    def close(self) -> None:
        """Wait until everything is sent."""
        self._run.finish()
