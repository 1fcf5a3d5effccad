"""`rl-play`: play an environment in a terminal."""
