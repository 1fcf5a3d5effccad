"""A run's configuration: one frozen dataclass for the command line, presets and saved files; it and the dataclasses of
its parts define all defaults."""

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from tyro.conf import OmitArgPrefixes

from ...actors.factory import ActorFactory
from ...actors.levels import LevelsConfig
from ...agents.config import AgentConfig
from ...agents.cores.fast import brgemm
from ...agents.values import map_leaves
from ...base.errors import SEEDS, EngramError, refuse, size_in_words
from ...base.processes import memory, num_cores
from ...base.settings import Settings, declared, setting
from ...base.units import Minutes, Seconds
from ...learners.config import LearnerConfig
from ...learners.group import Share, deal
from ...learners.population.config import PopulationConfig, applied
from .plain import PASSWORD

ELASTIC_ACTORS = 8  # Assumed number of actors that share an update's environments when the number follows the cluster


def check_device(name: str) -> None:
    """Raise EngramError unless `name` is the name of a device, whether it exists or not."""
    refuse(not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name), f"device is {name!r}; allowed: auto, cpu, cuda, cuda:N")


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """One training run."""

    env: str = "boxworld"
    """Environment: short name, Gymnasium id or module:Class."""
    env_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Parameters of the environment, KEY=VALUE."""
    agent: OmitArgPrefixes[AgentConfig] = AgentConfig()
    """The network."""
    learner: OmitArgPrefixes[LearnerConfig] = LearnerConfig()
    """Algorithm and optimizer."""
    levels: OmitArgPrefixes[LevelsConfig] = LevelsConfig()
    """The stages of the curriculum."""
    population: int = 0
    """Members that learn concurrently and from each other; 0: a single learner."""
    pbt: PopulationConfig = PopulationConfig()
    """How the members of a population learn from each other."""
    total_steps: int = setting(1_000_000_000, (1, None), resumable=True)
    """Environment steps to learn from, for each member of a population."""
    num_actors: int | Literal["auto"] = setting(1, (1, None), resumable=True)
    """Actor processes; auto: as many as the cluster has room for, adjusted during training."""
    envs_per_actor: int | Literal["auto"] = setting("auto", (1, None))
    """Environments that each actor steps together; auto: the environments of an update, divided among the actors."""
    env_workers: int = setting(0, (0, None), resumable=True, passive=True)
    """Processes per actor that step slow third-party environments; 0: the actor steps its environments itself."""
    num_learners: int = setting(1, (1, None), resumable=True)
    """Learner processes, on CPUs or, with `--device cuda`, on one GPU each. Each processes a share of every update; the
    result equals one learner's up to the order of float sums. In a population, each trains some of the members."""
    unroll_length: int = setting(40, (1, None))
    """Steps per unroll (T)."""
    envs_per_update: int = setting(32, (1, None))
    """Environments per update (B), of unroll_length steps each; with --sync, A2C and PPO, the
    environments of all actors: num_actors * envs_per_actor."""
    max_lag: int | Literal["auto"] = setting("auto", (0, None))
    """Largest age, in updates, of the acting weights when an update uses their data; auto: the smallest that
    lets actors and learner work concurrently, which is 1 unless an actor has more environments than an update."""
    device: str = setting("auto", resumable=True, passive=True)
    """Where the learner runs: auto (cpu for several learners), cpu, cuda or cuda:N."""
    learner_threads: int | Literal["auto"] = setting("auto", (1, None), resumable=True)
    """CPU threads of the learner, without effect on results; auto: the cores that no actor needs, at least 2."""
    seed: int = setting(1, SEEDS, passive=True)
    """Seed of weights, environments and action sampling, 0..2**64-1."""
    sync: bool = False
    """Every batch is one unroll from every actor, all with the newest weights; always the case for A2C and PPO."""
    local: bool = setting(False, resumable=True, passive=True)
    """Run everything in this process and one thread, without Ray: for debugging and bit-exact runs."""
    act_on: Literal["auto", "cpu", "cuda"] = "auto"
    """Where actors run networks. auto: actor processes (--local: this process); cpu, cuda: a thread, on that device."""
    run_dir: str | None = setting(None, resumable=True)
    """Run directory; runs/ENV-CORE-DATE if not set."""
    start_from: str | None = setting(None, passive=True)
    """Source of the initial weights: a run directory (its best weights), zoo:NAME, or the folder or URL of a card."""
    checkpoint_url: str | None = setting(None, resumable=True, passive=True)
    """URL to which finished checkpoints are also copied: s3://BUCKET/RUN, gs://, file://. Its path must not
    contain secrets."""
    time_limit: Minutes = setting(0.0, (0, None), resumable=True, passive=True)
    """Stop with a checkpoint after this time, such as 90s, 10m or 2h; a plain number is in minutes, 0 sets no limit."""
    log_every: int = setting(20_000, (1, None), resumable=True, passive=True)
    """Steps between two rows of metrics."""
    log_seconds: Seconds = setting(10.0, (0, None), resumable=True, passive=True)
    """Time after which a row of metrics is written even before --log-every steps; 0 sets no limit."""
    track: str | None = setting(None, resumable=True, passive=True)
    """Tracker that also receives every row of metrics: wandb (pip install 'engram-rl[wandb]'), the name of an
    entry point in the group engram.trackers, or module:Class."""
    eval_every: int = setting(0, (0, None), resumable=True)
    """Steps between evaluations on levels that training never sees (eval/*, best weights); 0: none. Training waits."""
    look_every: int = setting(0, (0, None), resumable=True)
    """Steps between state/* metrics and images of the recurrent state on one level, at most 1% of the time; 0: none."""
    video_every: int = setting(0, (0, None), resumable=True)
    """Steps between videos of an evaluation episode, in TensorBoard and the tracker; 0: none. Training waits."""
    eval_episodes: int = setting(100, (1, None), resumable=True)
    """Episodes of an evaluation, at least 1."""
    checkpoint_every: Seconds = setting(60.0, (0, None), resumable=True, passive=True)
    """Time between checkpoints; a plain number is in seconds."""
    keep_checkpoints: int = setting(3, (1, None), resumable=True, passive=True)
    """Number of checkpoints to keep in addition to the best one, at least 1."""
    max_actor_failures: int = setting(10, (0, None), resumable=True, passive=True)
    """Consecutive failures of an actor after which it is still replaced; 50 unrolls from its replacement reset the
    count."""
    actor_timeout: Seconds = setting(120.0, (1, None), resumable=True, passive=True)
    """Time without a response or an environment step after which an actor is replaced; a plain number
    is in seconds."""
    stall_timeout: Minutes = setting(10.0, (0, None), resumable=True, passive=True)
    """Time without an update or environment step after which the run saves and ends, exit code 3; a plain number is in
    minutes, 0 sets no limit."""
    actor_cpus: float = setting(1.0, (0, None), resumable=True, passive=True)
    """Ray CPUs that each actor claims."""
    actor_gpus: float = setting(0.0, resumable=True)
    """Fraction of a GPU that each Ray actor claims, 0..1; above 0, its network runs there."""
    ray_address: str | None = setting(None, resumable=True, passive=True)
    """Cluster to join: auto, or HOST:PORT of its head; if not set, a private Ray is started for the run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_device(self.device)
        url, address, envs = self.checkpoint_url, self.ray_address, self.actor_envs
        act_on, members = self.act_on, f"population is {self.population}"
        gpus, most_gpus = self.actor_gpus, 1 - self.in_process
        in_order, elastic = self.synchronous or self.in_process, self.fixed_actors is None
        explores = self.pbt != PopulationConfig()
        # An unroll of several batches is used in several updates, and may begin in the middle of a batch if neither
        # size divides the other.
        size = max(self.share_envs, 1)
        least = 0 if self.synchronous else -(-(envs - math.gcd(envs, size)) // size)
        excluded = {
            "checkpoint_url is not of the form PROTOCOL://PLACE; passwords belong in the environment, not in the URL": (
                url is not None and (PASSWORD.search(url) or not re.search("://.", url))
            ),
            f"act_on is {act_on!r}; allowed with --local, which has one thread: auto": self.local and act_on != "auto",
            "act_on is 'cuda'; allowed with device 'cpu': auto, cpu": act_on == "cuda" and self.device == "cpu",
            "num_actors is 'auto'; allowed with --local, --act-on, --sync, A2C and PPO: a number": elastic and in_order,
            f"actor_gpus is {gpus}; allowed: 0..1, and 0 with --local and --act-on": gpus < 0 or gpus > most_gpus,
            "actor_cpus is 0; allowed with num_actors = 'auto': above 0": elastic and not self.actor_cpus,
            f"max_lag is {self.max_lag}; allowed with {envs} environments per actor and updates of "
            f"{self.envs_per_update}: auto, or at least {least}": self.max_lag != "auto" and self.max_lag < least,
            f"ray_address is {address!r}; allowed: auto or HOST:PORT, of the cluster's head": (
                address is not None and (not address or "://" in address)
            ),
            f"{members}; allowed: 0 (a single learner) or at least 2": self.population < 0 or self.population == 1,
            f"{members}, and members in different stages of a curriculum cannot be compared; "
            "allowed with --curriculum: --population 0": self.population and self.levels.curriculum,
            "population is 0; allowed with settings of pbt: at least 2": not self.population and explores,
        }
        for message, holds in excluded.items():
            refuse(holds, message)
        if self.num_learners > 1:
            self._check_learners()
        for explored in self.pbt.explored:
            applied(self.learner, {explored.setting: explored.numbers[0]})

    def _check_learners(self) -> None:
        flags = {
            "--local": self.local,
            "--act-on": self.act_on != "auto",
            "--cuda-graph": self.learner.cuda_graph,
            "--pbt.together on": self.pbt.together == "on",
            "--replay-ratio": self.learner.replay_ratio > 0,
            "--actor-gpus": self.device.startswith("cuda") and self.actor_gpus > 0,
            "--num-actors auto": not self.population and self.fixed_actors is None,
        }
        allowed = f"num_learners is {self.num_learners}; allowed with"
        for flag, active in flags.items():
            refuse(active, f"{allowed} {flag}: 1")
        limits = {"num_actors": self.fixed_actors or 1, "envs_per_update": self.columns}
        for name, most in ({"population": self.population} if self.population else limits).items():
            refuse(most < self.num_learners, f"{allowed} {name} = {most}: at most {most}")

    @property
    def num_learner_threads(self) -> int:
        """Threads of the learner on this machine."""
        if self.learner_threads != "auto":
            return self.learner_threads
        return max(2, num_cores() - (0 if self.in_process else self.fixed_actors or num_cores()))

    @property
    def in_process(self) -> bool:
        """Whether the run trains without Ray."""
        return self.local or self.act_on != "auto"

    @property
    def num_members(self) -> int:
        return max(self.population, 1)

    @property
    def name(self) -> str:
        return f"{self.env}-{self.agent.core}".replace("/", "-").replace(":", "-")

    @property
    def synchronous(self) -> bool:
        """Whether every batch is one unroll from every actor."""
        return self.sync or self.learner.method.on_policy

    @property
    def columns(self) -> int:
        """Environments per update."""
        return (self.fixed_actors or 1) * self.actor_envs if self.synchronous else self.envs_per_update

    @property
    def shares(self) -> list[Share]:
        """Each learner's share of the actors and of an update."""
        columns = None if self.synchronous else self.envs_per_update
        learners = 1 if self.population else self.num_learners
        return deal(learners, self.fixed_actors or 1, columns, self.actor_envs)

    @property
    def share_envs(self) -> int:
        """Environments per update of the learner with the smallest share."""
        return self.envs_per_update // (1 if self.population else self.num_learners)

    @property
    def actor_envs(self) -> int:
        """Environments per actor; with an elastic number of actors, the value for ELASTIC_ACTORS."""
        if self.envs_per_actor != "auto":
            return self.envs_per_actor
        return -(-self.envs_per_update // (self.fixed_actors or ELASTIC_ACTORS))

    @property
    def lag_bound(self) -> int:
        """Largest allowed age of the acting weights, in updates."""
        if self.synchronous:
            return 0
        return -(-self.actor_envs // self.share_envs) if self.max_lag == "auto" else self.max_lag

    @property
    def fixed_actors(self) -> int | None:
        """Number of actor processes; None if it follows the cluster."""
        return None if self.num_actors == "auto" else int(self.num_actors)

    def factory(self) -> ActorFactory:
        device = self.act_on
        if device == "auto":
            device = "cuda" if self.actor_gpus else "cpu"  # in a Ray process, the claimed GPU has index 0
        elif device == "cuda" and self.device.startswith("cuda"):
            device = self.device
        return ActorFactory(
            env=self.env,
            env_args=self.env_args,
            imitate=self.learner.imitate,
            novelty=self.learner.novelty_bonus > 0,
            levels=self.levels,
            discount=self.learner.discount,
            reward_clip=self.learner.reward_clip,
            agent=self.agent,
            num_envs=self.actor_envs,
            env_workers=self.env_workers,
            unroll_length=self.unroll_length,
            seed=self.seed,
            precision=self.learner.precision,
            device=device,
        )


RESUMABLE = frozenset(declared(RunConfig(), "resumable"))
"""Settings allowed with --resume; only --total-steps and, in synchronous runs, --num-actors affect learning."""
PASSIVE = frozenset(declared(RunConfig(), "passive"))
"""Settings that are never reported as a difference between runs or from a preset."""


def check_memory(config: RunConfig, factory: ActorFactory, batch: Any) -> int:
    """Bytes of the observations in an update and all actors' unrolls. Raises EngramError if they exceed the memory."""
    sizes: list[int] = []
    map_leaves(lambda x: sizes.append(x.nbytes) or x, batch.new_observation())
    actors = (config.fixed_actors or 1) if config.in_process or not config.ray_address else 1
    environments = config.columns + actors * factory.num_envs * config.num_members
    total, available = environments * sum(sizes) * (config.unroll_length + 1), memory()
    takes = f"unrolls of {config.unroll_length} steps would take {size_in_words(total)}"
    refuse(total > available.total, f"{takes}, in {environments:,} environments of actors and updates; {available}")
    return total


def find_device(name: str, num_learners: int = 1) -> torch.device:
    """Find the learner's device. Raises EngramError if it does not exist. Several learners use GPUs only if named."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() and num_learners == 1 else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        gpus = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
        why = "torch was built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        available = ", ".join(["cpu", *gpus]) + ("" if gpus else f"; {why}")
        raise EngramError(f"--device {name}: there is no such device; allowed: {available}")
    return device


def on_device(config: LearnerConfig, device: torch.device) -> LearnerConfig:
    """Replace the precision "auto" in a configuration: bf16 on a CPU with instructions for it if a short measurement
    finds it faster, else float32. Raises EngramError for a precision that the device lacks."""
    on_cpu = device.type == "cpu"
    if config.precision == "auto":
        return replace(config, precision="bf16" if on_cpu and brgemm.pays() else "float32")
    refuse(on_cpu and config.precision == "tf32", "precision is 'tf32'; allowed on a CPU: auto, float32, bf16")
    if on_cpu and config.precision == "bf16" and not brgemm.routine():
        raise EngramError(f"precision is 'bf16'; allowed on this CPU ({brgemm.missing()}): auto, float32")
    return config
