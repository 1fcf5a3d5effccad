"""`rl-play`: a person plays a world in a terminal."""
