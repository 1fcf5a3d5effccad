"""Configuration of learning from a batch: the algorithm, its coefficients and the optimizer."""

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from ..base.errors import above, below
from ..base.settings import Settings, setting
from .algorithms import make_algorithm
from .algorithms.algorithm import Algorithm
from .algorithms.imitation import Imitation
from .optimizers import OptimizerName, Schedule

Reduction: TypeAlias = Literal["mean", "sum"]
Precision: TypeAlias = Literal["auto", "float32", "tf32", "bf16"]
"""Precisions; a run replaces auto with one of the others when it starts."""


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(Settings):
    """Algorithm, coefficients and optimizer."""

    algorithm: str = "vtrace"
    """vtrace (IMPALA, with lag correction), a2c or ppo (both synchronous), another registered name, or module:Class."""
    algorithm_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Settings of the algorithm, KEY=VALUE; docs/reference/algorithms.md lists them."""
    imitate: str = ""
    """Scripted player, module:Class. The cross entropy with the player's actions in the agent's own states replaces
    policy loss, value loss and entropy bonus, to test what a network can learn. Such agents are marked."""
    discount: float = setting(0.99, (0, 1))
    """Gamma, per step, 0..1."""
    entropy_cost: float = setting(0.01, (0, None))
    """Weight of the entropy bonus, at least 0."""
    entropy_schedule: Schedule = "constant"
    """Whether the entropy cost is constant or falls linearly to 0 over the run's total steps."""
    value_cost: float = setting(0.5, (0, None))
    """Weight of the value loss, at least 0; the loss itself includes a factor of 1/2."""
    auxiliary_cost: float = setting(1.0, (0, None))
    """Weight of the core's own loss (MNM's meta loss), at least 0."""
    prediction_cost: float = setting(1.0, (0, None))
    """Weight of the prediction error, at least 0; used with `prediction_size`."""
    reward_clip: float = setting(0.0, (0, None))
    """Rewards are clipped to plus or minus this value before learning; 0 disables clipping."""
    novelty_bonus: float = setting(0.0, (0, None))
    """Unclipped bonus on the training reward when the agent enters a cell (without a map: receives an observation)
    that is new in the episode; falls linearly to 0 over the run's total steps. Reported returns and
    evaluations exclude it."""
    replay_ratio: float = setting(0.0, (0, None))
    """Replayed unrolls per fresh unroll in each batch, at least 0; V-trace corrects their lag. Loss metrics include
    replayed unrolls; step and episode counts do not. Checkpoints contain the buffer."""
    replay_size: int = setting(512, (1, None))
    """Capacity of the replay buffer in unrolls of single environments, at least 1; the oldest are removed first."""
    replay_burn_in: int = setting(0, (0, None))
    """Initial steps of replayed unrolls that recompute the recurrent state and are excluded from the loss, at least
    0."""
    reduction: Reduction = "mean"
    """Losses are means over valid steps, or sums (scalable_agent); optimizer epsilons depend on this choice."""
    bptt_length: int = setting(0, (0, None))
    """Gradients through time are truncated after this many steps inside an unroll; 0 truncates only at its start."""
    optimizer: OptimizerName = "adam"
    """Adam, or RMSProp as in TensorFlow (epsilon inside the square root)."""
    lr: float = setting(5e-4, above(0))
    """Learning rate, above 0."""
    lr_schedule: Schedule = "linear"
    """Whether the learning rate falls linearly to 0 over the run's total steps, or is constant."""
    lr_warmup: int = setting(0, (0, None))
    """Steps over which the learning rate rises from 0, at least 0."""
    eps: float = setting(1e-8, above(0))
    """Epsilon of the optimizer, above 0: tiny with mean losses; scalable_agent's 0.1 is for summed losses."""
    adam_beta1: float = setting(0.9, below(1))
    """Adam's decay of the mean gradient (momentum), below 1; 0 uses only the newest gradient, which tolerates lag."""
    rmsprop_decay: float = setting(0.99, below(1))
    """RMSProp's decay of squared gradients, below 1."""
    rmsprop_momentum: float = setting(0.0, below(1))
    """RMSProp's momentum, below 1."""
    max_grad_norm: float = setting(1.0, (0, None))
    """Gradients are scaled down to at most this global norm; 0 disables clipping. Summed losses need about 40."""
    compile: bool = setting(False, resumable=True)
    """Compile a core's steps with torch.compile; on a GPU, best with cuda_graph. A failure only prints its reason."""

    cuda_graph: bool = False
    """Record the whole update as one CUDA graph and replay it. A failure only prints its reason."""
    precision: Precision = "auto"
    """Precision of factors in matrix multiplications: float32; tf32 (10-bit mantissa; GPU only); bf16 (bfloat16; on a
    GPU in torso and heads, on a CPU with AVX512-BF16 or AMX for all large weights, also in actors); auto: bf16 on a
    CPU if it is faster, else float32. Weights, states, sums and losses stay float32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.imitate and not all(self.imitate.partition(":")):
            raise ValueError(f"imitate is {self.imitate!r}; allowed: module:Class, a player")
        if self.method.on_policy and self.replay_ratio:
            raise ValueError(
                f"replay_ratio is {self.replay_ratio}; allowed with algorithm {self.algorithm}, which learns from "
                "fresh unrolls only: 0"
            )

    @cached_property
    def method(self) -> Algorithm:
        """Create the algorithm with its settings. Raises ValueError for an unknown algorithm, setting or value."""
        made = make_algorithm(self.algorithm, **self.algorithm_args)
        return Imitation(made) if self.imitate else made

    def resolved(self) -> "LearnerConfig":
        """Return a copy that contains every setting of the algorithm explicitly."""
        return replace(self, algorithm_args=asdict(self.method.settings))
