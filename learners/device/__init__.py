"""Learning on an asynchronous device: transfer of batches and replay of recorded updates."""
