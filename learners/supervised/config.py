"""Configuration of supervised learning: batch, optimizer, network around the core."""

from dataclasses import dataclass

from ...base.messages import above, check_fields


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig:
    """Common settings: Adam, clipping by the global norm, cross entropy."""

    batch_size: int = 64
    """Sequences per update."""
    lr: float = 1e-3
    """Adam's learning rate, above 0."""
    eps: float = 1e-8
    """Adam's epsilon, above 0."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0 does not clip."""
    bptt_length: int = 0
    """Gradients through time are truncated after this number of steps inside a batch; 0 truncates only at its start."""
    auxiliary_cost: float = 1.0
    """Weight of the core's own loss (MNM's meta loss), at least 0."""
    embedding_size: int = 0
    """Number of features of embedded symbols; 0: one-hot up to 64 symbols, 64 features above."""
    head_layers: int = 0
    """Hidden layers (ReLU) between core and output, at most 1000."""
    head_size: int = 256
    """Width of the hidden layers."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            batch_size=(1, None),
            lr=above(0),
            eps=above(0),
            max_grad_norm=(0, None),
            bptt_length=(0, None),
            auxiliary_cost=(0, None),
            embedding_size=(0, None),
            head_layers=(0, 1000),
            head_size=(1, None),
        )
