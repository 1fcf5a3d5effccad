"""Memory cores: recurrent modules behind one contract (core.py), made by name (registry.py)."""

from .core import Core, full_precision, reset_state, unroll
from .registry import core_names, make_core

__all__ = ["Core", "core_names", "full_precision", "make_core", "reset_state", "unroll"]
