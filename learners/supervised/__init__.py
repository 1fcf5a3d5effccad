"""Supervised learning of sequences with the agents' memory cores: measures memory capacity, without acting."""
