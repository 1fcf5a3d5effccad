"""`rl-eval`: an agent of a run plays fresh episodes."""
