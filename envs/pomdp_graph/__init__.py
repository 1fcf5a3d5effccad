"""The graph POMDP: learn an unknown transit map while traveling on it, within 30 steps."""

from .env import PomdpGraph, PomdpGraphBatch

__all__ = ["PomdpGraph", "PomdpGraphBatch"]
