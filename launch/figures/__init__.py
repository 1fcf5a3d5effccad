"""`rl-reproduce`: the papers' figures, each trained, evaluated and plotted by one command."""
