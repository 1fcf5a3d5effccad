"""`rl-look`: an episode of a trained agent as a page, with what is in its memory at every step."""
