"""Services that receive the metrics of a run: the contract, the registry, and Weights & Biases."""
