"""Selection of levels: curricula, level replay, and staggered episodes."""
