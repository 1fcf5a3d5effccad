"""`rl-reproduce`: train, evaluate and plot a figure of a paper with one command."""
