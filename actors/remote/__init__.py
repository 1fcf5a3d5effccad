"""Pool of actors in Ray processes: the pool, one slot per actor, flow control, and the wire format."""
