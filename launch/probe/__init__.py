"""`rl-probe`: supervised tasks that test memory cores, and a leaderboard of cores over tasks."""
