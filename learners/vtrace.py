"""V-trace targets by their public name; the formulas of returns and of V-trace are in returns.py."""

from .returns import VTrace, from_importance_weights

__all__ = ["VTrace", "from_importance_weights"]
