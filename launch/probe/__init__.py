"""`rl-probe`: supervised tasks that test memory cores."""
