"""What the learner does with a batch: the algorithm, its coefficients and the optimiser."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from .losses import Reduction
from .optimisers import OptimiserName
from .schedules import Schedule

Algorithm: TypeAlias = Literal["vtrace", "a2c"]


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """Algorithm, coefficients and optimiser."""

    algorithm: Algorithm = "vtrace"
    """V-trace (IMPALA, off-policy corrected) or A2C (synchronous)."""
    discount: float = 0.99
    """Gamma, per step, 0..1."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus, at least 0."""
    value_cost: float = 0.5
    """Weight of the value loss, at least 0; the loss has a half of its own."""
    auxiliary_cost: float = 1.0
    """Weight of the core's own loss (MNM's meta loss), at least 0."""
    clip_rho: float = 1.0
    """V-trace's clip of importance ratios in the value targets (rho bar); 0 does not clip."""
    clip_pg_rho: float = 1.0
    """V-trace's clip of importance ratios in the policy gradient; 0 does not clip."""
    gae_lambda: float = 1.0
    """A2C: lambda of generalised advantage estimation, 0..1; 1 is the n-step return with bootstrap."""
    reward_clip: float = 0.0
    """Rewards are clipped to plus or minus this before learning; 0 does not clip."""
    reduction: Reduction = "mean"
    """Losses are means over valid steps, or sums (scalable_agent); optimiser epsilons belong to one of them."""
    bptt_length: int = 0
    """Gradients through time are cut every so many steps inside an unroll; 0 cuts only at its start."""
    optimiser: OptimiserName = "adam"
    """Adam, or RMSProp as TensorFlow has it (epsilon inside the root)."""
    lr: float = 5e-4
    """Learning rate, above 0."""
    lr_schedule: Schedule = "linear"
    """The learning rate falls linearly to 0 over the run's total steps, or stays."""
    eps: float = 1e-8
    """The optimiser's epsilon, above 0: tiny with mean losses; scalable_agent's 0.1 belongs to summed ones."""
    rmsprop_decay: float = 0.99
    """RMSProp's decay of squared gradients, 0..1."""
    rmsprop_momentum: float = 0.0
    """RMSProp's momentum, 0..1."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0 does not clip. Summed losses want about 40."""
    compile: bool = False
    """Run a core's steps through torch.compile (on a GPU as CUDA graphs); where that fails, say why and do without."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("discount", 0, 1),
            ("entropy_cost", 0, None),
            ("value_cost", 0, None),
            ("auxiliary_cost", 0, None),
            ("clip_rho", 0, None),
            ("clip_pg_rho", 0, None),
            ("gae_lambda", 0, 1),
            ("reward_clip", 0, None),
            ("bptt_length", 0, None),
            ("rmsprop_decay", 0, 1),
            ("rmsprop_momentum", 0, 1),
            ("max_grad_norm", 0, None),
        ):
            value = getattr(self, name)
            if not value >= low or (high is not None and not value <= high):
                span = f"at least {low}" if high is None else f"{low}..{high}"
                raise ValueError(f"{name} is {value}; allowed: {span}")
        for name in ("lr", "eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: above 0")
        for name, allowed in (
            ("algorithm", get_args(Algorithm)),
            ("reduction", get_args(Reduction)),
            ("optimiser", get_args(OptimiserName)),
            ("lr_schedule", get_args(Schedule)),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: {', '.join(allowed)}")
