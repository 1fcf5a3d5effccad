"""Inspection of a memory: traces of a core's steps, panels that show them, parts for interventions."""

from . import by_core
from .panels import Panel, panels
from .trace import Trace, over_time, recorded, statistics

__all__ = ["Panel", "Trace", "by_core", "over_time", "panels", "recorded", "statistics"]
