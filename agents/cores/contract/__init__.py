"""Contract of cores: conditions for faster forms, and the precision of cores."""
