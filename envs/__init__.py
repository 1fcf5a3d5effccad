"""The worlds: memory tasks as compiled, batched Gymnasium environments."""
