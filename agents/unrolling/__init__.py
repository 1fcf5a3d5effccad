"""How a core is run over T steps other than one by one: blocks, trajectories, scans, compiled steps."""
