"""`rl-doctor`: can this machine do it, and how fast."""
