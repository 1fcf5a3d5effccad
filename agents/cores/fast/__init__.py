"""Compiled CPU routes of the cores; each is selected by one condition and can be disabled."""
