"""The pool of actors in Ray processes: the pool, an actor's slot, the window of requests, and the wire between them."""
