"""`--track wandb`: Weights & Biases. WANDB_MODE=offline stores everything in the run directory, for `wandb sync`."""

import importlib
import io
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tracker import Tracker

wandb: Any = importlib.import_module("wandb")


class WandB(Tracker):
    """A run at W&B; a resumed run continues the one in its `.wandb-id`."""

    def __init__(self, run: Path, *, name: str, group: str | None, config: dict[str, Any]) -> None:
        file = run / ".wandb-id"
        if not file.exists():
            file.write_text(secrets.token_hex(8))
        self._run: Any = wandb.init(
            project="engram",
            name=name,
            group=group,
            id=file.read_text().strip(),
            resume="allow",
            dir=str(run),
            config=config,
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def video(self, step: int, name: str, gif: bytes) -> None:
        self._run.log({"step": step, name: wandb.Video(io.BytesIO(gif), format="gif")})

    def close(self) -> None:
        self._run.finish()
