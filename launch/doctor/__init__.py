"""`rl-doctor`: checks whether a machine suits a run, and symptoms in a run's metrics."""
