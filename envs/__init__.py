"""The environments: memory tasks as compiled, batched Gymnasium environments."""
