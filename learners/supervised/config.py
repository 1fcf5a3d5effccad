"""Configuration of supervised learning: batch, optimizer, and network around the core."""

from dataclasses import dataclass

from ...base.messages import above
from ...base.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig(Settings):
    """Common settings: Adam, clipping by the global norm, cross entropy."""

    batch_size: int = setting(64, (1, None))
    """Sequences per update."""
    lr: float = setting(1e-3, above(0))
    """Adam's learning rate, above 0."""
    eps: float = setting(1e-8, above(0))
    """Adam's epsilon, above 0."""
    max_grad_norm: float = setting(1.0, (0, None))
    """Gradients are scaled down to at most this global norm; 0 disables clipping."""
    bptt_length: int = setting(0, (0, None))
    """Gradients through time are truncated after this number of steps inside a batch; 0 truncates only at its start."""
    auxiliary_cost: float = setting(1.0, (0, None))
    """Weight of the core's own loss (MNM's meta loss), at least 0."""
    embedding_size: int = setting(0, (0, None))
    """Number of features per embedded symbol; 0 is one-hot for up to 64 symbols, 64 features for more."""
    head_layers: int = setting(0, (0, 1000))
    """Number of hidden layers (ReLU) between core and output, at most 1000."""
    head_size: int = setting(256, (1, None))
    """Width of the hidden layers."""
