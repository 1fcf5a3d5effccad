"""Training, evaluation and trained agents for Python programs; commands are command lines for the same functions."""
