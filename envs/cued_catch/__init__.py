"""Cued Catch: learn what four cues mean, then catch the ball that each cue indicates."""

from .env import CuedCatch, CuedCatchBatch

__all__ = ["CuedCatch", "CuedCatchBatch"]
