"""A T-maze that raises once when a file is laid down for it: the soak's fault in an environment."""

from pathlib import Path
from typing import Any

from engram.envs.t_maze import TMazeBatch


class FlaggedTMaze(TMazeBatch):
    """The T-maze whose next step raises, in one actor, if the file `flag` is there; the file is taken away."""

    def __init__(self, num_envs: int, *, flag: str, **environment: Any) -> None:
        super().__init__(num_envs, **environment)
        self._flag = Path(flag)

    def step_into(self, *arrays: Any) -> None:
        try:
            self._flag.unlink()
        except FileNotFoundError:
            super().step_into(*arrays)
        else:
            raise RuntimeError("the soak asked for this")
