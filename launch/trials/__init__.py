"""`rl-train --seeds` and `--sweep`: several runs in one directory."""
