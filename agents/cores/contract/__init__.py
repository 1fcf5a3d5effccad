"""The contract of cores: when a faster form may stand in, and one call of each method before a run."""
