"""Who runs where: configuration, command lines, metrics, run directories."""
