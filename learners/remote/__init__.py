"""Learners in Ray processes that share every batch with the learner of the run's own process."""
