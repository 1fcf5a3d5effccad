"""`rl-eval`: evaluate a trained agent on new episodes."""
