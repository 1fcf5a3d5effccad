"""Contract of cores: conditions for faster forms, and one test call of each method before a run."""
