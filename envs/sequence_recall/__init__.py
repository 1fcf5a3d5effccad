"""Sequence Recall: watch lights go on one after the other, then walk to them in the same order."""

from .env import SequenceRecall, SequenceRecallBatch

__all__ = ["SequenceRecall", "SequenceRecallBatch"]
