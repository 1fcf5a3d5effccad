"""`rl-reproduce`: the papers' figures, each trained, evaluated and drawn by one command."""
