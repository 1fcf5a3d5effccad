"""`rl-check-core`: the certificate of a memory core."""
