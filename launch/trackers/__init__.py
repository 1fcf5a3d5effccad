"""Experiment trackers: the interface, the registry, Weights & Biases and MLflow."""
