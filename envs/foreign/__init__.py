"""Worlds made elsewhere: any Gymnasium id, or `module:Class`, behind the methods of our own batched engine."""

from .batch import ForeignBatch

__all__ = ["ForeignBatch"]
