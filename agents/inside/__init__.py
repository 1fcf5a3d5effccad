"""Inspection of a memory: traces of a core's steps, panels that show them, parts for interventions."""

from . import filtered, gated, slots, windowed, written
from .panels import Panel, panels
from .trace import Trace, over_time, recorded

__all__ = ["Panel", "Trace", "filtered", "gated", "over_time", "panels", "recorded", "slots", "windowed", "written"]
