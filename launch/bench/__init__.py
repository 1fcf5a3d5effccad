"""`rl-bench`: training speed as a fraction of the machine's ideal speed."""
