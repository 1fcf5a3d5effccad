"""Programs: configuration, command lines, training, metrics, run directories."""
