"""Learning on a device that the processor does not wait for: how batches travel there, and how updates are replayed."""
