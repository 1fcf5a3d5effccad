"""Experiment trackers: the interface, the registry, and Weights & Biases."""
