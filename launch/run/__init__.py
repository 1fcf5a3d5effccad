"""The parts of a run that all commands share: configuration, presets, command line, run directory and its files."""
