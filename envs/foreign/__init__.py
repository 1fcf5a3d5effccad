"""Third-party environments: any Gymnasium id, or `module:Class`, with the interface of the batched engine."""

from .batch import ForeignBatch
from .names import environment_maker

__all__ = ["ForeignBatch", "environment_maker"]
