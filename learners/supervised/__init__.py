"""Supervised learning of sequences with the memory cores of the agents: capacity of a memory, without acting."""
