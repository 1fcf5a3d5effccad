"""`rl-play`: a person plays an environment in a terminal."""
