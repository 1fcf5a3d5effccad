"""The T-maze: observe a cue, wait in limbo, then walk to the goal that the cue indicated."""

from .env import TMaze, TMazeBatch

__all__ = ["TMaze", "TMazeBatch"]
