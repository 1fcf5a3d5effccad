"""Forms of a core's unroll other than step by step: blocks, trajectories, scans, compiled steps."""
