"""engram: distributed reinforcement learning for agents with memory.

Importing engram registers its environments with Gymnasium, so that `gymnasium.make("engram/BoxWorld-v0")` works. The
names below, and torch with them, are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .envs.registration import make_env, register_envs

if TYPE_CHECKING:
    from .launch.api.agent import TrainedAgent, evaluate, load_agent
    from .launch.api.run import Run, configure, train

__version__ = "0.2.0"

__all__ = ["Run", "TrainedAgent", "configure", "evaluate", "load_agent", "make_env", "train"]

_HOMES = {
    **dict.fromkeys(("TrainedAgent", "load_agent"), "agent"),
    "evaluate": "agent",
    **dict.fromkeys(("Run", "configure", "train"), "run"),
}
"""The module of launch/api that each public name is in."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".launch.api.{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_envs()
