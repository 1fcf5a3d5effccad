"""`rl-bench`: speed beside the speed of light of the machine."""
