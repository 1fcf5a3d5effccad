"""Agents: torsos, memory cores and heads, as plain torch modules."""
