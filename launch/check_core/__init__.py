"""`rl-check-core`: a certificate of correct recurrence for a memory core."""
