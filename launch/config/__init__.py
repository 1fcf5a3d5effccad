"""Configuration of a run: settings, presets, and the command line."""
