"""A run's configuration: one frozen dataclass that the command line, presets and saved files all make.

Defaults live here and in the dataclasses of the parts (AgentConfig, LearnerConfig) and nowhere else; presets.py holds
the papers' values for each pairing of world and core.
"""

import difflib
import types
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from ..actors.factory import ActorFactory
from ..agents.agent import AgentConfig
from ..learners.config import LearnerConfig


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run."""

    env: str = "boxworld"
    """World: short name, Gymnasium id or module:Class."""
    env_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Parameters of the world, KEY=VALUE."""
    agent: AgentConfig = AgentConfig()
    """The network."""
    learner: LearnerConfig = LearnerConfig()
    """Algorithm and optimiser."""
    total_steps: int = 1_000_000_000
    """Environment steps to learn from."""
    num_actors: int = 1
    """Actor processes."""
    envs_per_actor: int = 64
    """Environments that each actor steps together."""
    unroll_length: int = 40
    """Steps per unroll (T)."""
    batch_size: int = 32
    """Environments per update (B); with --sync it is num_actors * envs_per_actor."""
    device: str = "auto"
    """Where the learner runs: auto, cpu, cuda or cuda:N."""
    seed: int = 1
    """Seed of weights, environments and action sampling, at least 0."""
    sync: bool = False
    """Every batch is one unroll of every actor, all made with the newest weights; always so for A2C."""
    local: bool = False
    """Everything in this process and one thread, without Ray: for debugging and bit-exact runs."""
    run_dir: str | None = None
    """Run directory; runs/ENV-CORE-DATE if not given."""
    time_limit: float = 0.0
    """Stop with a checkpoint after this many minutes; 0 has no limit."""
    log_every: int = 20_000
    """Steps between two rows of metrics."""
    checkpoint_every: float = 60.0
    """Seconds between checkpoints."""
    keep_checkpoints: int = 3
    """Checkpoints kept besides the best one, at least 1."""
    max_actor_failures: int = 10
    """Actors that may fail and be replaced before the run stops."""
    actor_timeout: float = 120.0
    """Seconds after which an actor that has not answered is replaced."""
    actor_cpus: float = 1.0
    """Ray CPUs that each actor claims."""

    def __post_init__(self) -> None:
        for name, low in (
            ("total_steps", 1),
            ("num_actors", 1),
            ("envs_per_actor", 1),
            ("unroll_length", 1),
            ("batch_size", 1),
            ("seed", 0),
            ("time_limit", 0),
            ("log_every", 1),
            ("checkpoint_every", 0),
            ("keep_checkpoints", 1),
            ("max_actor_failures", 0),
            ("actor_timeout", 1),
            ("actor_cpus", 0),
        ):
            if not getattr(self, name) >= low:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: at least {low}")
        kind, _, index = self.device.partition(":")
        if kind not in ("auto", "cpu", "cuda") or (index and not (kind == "cuda" and index.isdigit())):
            raise ValueError(f"device is {self.device!r}; allowed: auto, cpu, cuda, cuda:N")

    @property
    def synchronous(self) -> bool:
        """Whether batches are gathered from all actors at once."""
        return self.sync or self.learner.algorithm == "a2c"

    @property
    def columns(self) -> int:
        """Environments per update."""
        return self.num_actors * self.envs_per_actor if self.synchronous else self.batch_size

    def factory(self) -> ActorFactory:
        """The description of this run's actors."""
        return ActorFactory(
            env=self.env,
            env_args=self.env_args,
            agent=self.agent,
            num_envs=self.envs_per_actor,
            unroll_length=self.unroll_length,
            seed=self.seed,
        )


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as nested dicts of plain values."""
    return asdict(config)


def from_dict(cls: type[Any], data: dict[str, Any], path: str = "") -> Any:
    """A configuration of dataclass `cls` from nested dicts. Raises ValueError naming unknown settings."""
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1) or sorted(hints)
            raise ValueError(f"unknown setting {path + key!r}; did you mean: {', '.join(near)}?")
        hint = hints[key]
        if is_dataclass(hint):
            values[key] = from_dict(hint, value, f"{path}{key}.")  # pyright: ignore[reportArgumentType]
        else:
            values[key] = _plain(hint, value, path + key)
    return cls(**values)


def _plain(hint: Any, value: Any, name: str) -> Any:
    """A value as the type that its field declares."""
    origin = get_origin(hint)
    if origin is tuple:
        return tuple(value)
    if origin is types.UnionType or origin is None:
        allowed = get_args(hint) or (hint,)
        if float in allowed and type(value) is int:
            return float(value)
        if isinstance(hint, type) and hint in (int, float, bool, str) and type(value) is not hint:
            raise ValueError(f"{name} is {value!r}; expected {hint.__name__}")
    return value


def differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Settings in which two configurations differ: (name, old value, new value)."""
    found: list[tuple[str, Any, Any]] = []
    for each in fields(old):
        a, b = getattr(old, each.name), getattr(new, each.name)
        if is_dataclass(a):
            found += differences(a, b, f"{path}{each.name}.")
        elif a != b:
            found.append((path + each.name, a, b))
    return found
