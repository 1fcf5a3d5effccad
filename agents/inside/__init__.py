"""Inspection of a memory: traces of a core's steps, panels that show them, parts for interventions."""

from .panels import Panel, panels
from .trace import Trace, over_time, recorded, statistics

__all__ = ["Panel", "Trace", "over_time", "panels", "recorded", "statistics"]
