"""Population-based training: configuration, search space, decisions."""
