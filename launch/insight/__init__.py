"""`rl-look`: a page with an episode of a trained agent and its recurrent state at every step."""
