"""Supervised learning of sequences with the memory cores of the agents: what a memory can hold, without acting."""
