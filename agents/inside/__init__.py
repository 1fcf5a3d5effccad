"""A memory at work: traces of a core's steps, panels that show them, parts to interfere with."""

from . import filtered, gated, slots, windowed, written
from .panels import Panel, panels
from .trace import Trace, over_time, recorded

__all__ = ["Panel", "Trace", "filtered", "gated", "over_time", "panels", "recorded", "slots", "windowed", "written"]
