"""Contracts of custom parts of an agent."""
