"""The pool of actors in Ray processes: the pool, an actor's slot, flow control of requests, and the wire format."""
