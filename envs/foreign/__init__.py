"""Environments made elsewhere: any Gymnasium id, or `module:Class`, behind the methods of our own batched engine."""

from .batch import ForeignBatch
from .names import environment_maker

__all__ = ["ForeignBatch", "environment_maker"]
