"""Acting: an Actor steps a batch of environments with an agent and returns unrolls."""
