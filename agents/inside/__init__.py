"""Inspection of a memory: traces of a core's steps, panels that show them, parts for interventions."""

from . import gated, slots
from .panels import Panel, panels
from .trace import Trace, over_time, recorded, statistics

__all__ = ["Panel", "Trace", "gated", "over_time", "panels", "recorded", "slots", "statistics"]
