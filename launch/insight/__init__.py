"""`rl-look`: an episode of a trained agent as a page, with its recurrent state at every step."""
