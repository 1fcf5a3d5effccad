"""Algorithms: one file each, with its settings, targets and loss terms."""
