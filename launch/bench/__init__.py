"""`rl-bench`: training speed compared with the machine's ideal speed."""
