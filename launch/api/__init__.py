"""Training, evaluation and trained agents for Python programs; the commands call the same functions."""
