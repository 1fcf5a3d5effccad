"""One run, from a command line to a run directory."""
