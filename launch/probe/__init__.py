"""`rl-probe`: what can a memory hold? Supervised tasks, and a leaderboard of cores over tasks."""
