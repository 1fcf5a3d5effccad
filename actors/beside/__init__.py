"""Acting in the learner's process, beside the learner."""
