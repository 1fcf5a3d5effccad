"""Memory cores: recurrent modules behind one contract (core.py), created by name (registry.py)."""

from .core import Core, reset_state, unroll
from .registry import core_names, make_core

__all__ = ["Core", "core_names", "make_core", "reset_state", "unroll"]
