"""A population in a run, and `rl-population`, which shows and replays one."""
