"""What a run is made of: configuration, presets, command line, run directory and what it holds."""
