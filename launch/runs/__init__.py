"""Run directories: where a run is saved, and how it is continued."""
