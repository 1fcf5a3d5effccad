"""The T-maze: see which way to go, be held in limbo, and then go there."""

from .env import TMaze, TMazeBatch

__all__ = ["TMaze", "TMazeBatch"]
