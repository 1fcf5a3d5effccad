"""Learning: V-trace, losses, the learner and its checkpoints."""
