"""Sequence Recall: watch lights turn on one after another, then walk to them in the same order."""

from .env import SequenceRecall, SequenceRecallBatch

__all__ = ["SequenceRecall", "SequenceRecallBatch"]
