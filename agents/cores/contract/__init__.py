"""The contract of cores: calls are checked, and before a run its methods once."""
