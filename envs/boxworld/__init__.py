"""BoxWorld: open the right boxes in the right order, with a window of five by five cells."""

from .env import BoxWorld, BoxWorldBatch

__all__ = ["BoxWorld", "BoxWorldBatch"]
