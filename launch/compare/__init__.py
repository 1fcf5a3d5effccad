"""`rl-compare`: curves, interquartile means and probabilities of improvement of runs with several seeds."""
