"""Picklable description of an actor, from which any process can create it."""

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium import spaces

from ..agents.agent import MAP, PRIVILEGED, Agent
from ..agents.config import AgentConfig
from ..agents.specs import ActionSpec, ArraySpec, BoxSpec, ChoiceSpec, ObservationSpec
from ..base.errors import refuse, user_errors
from ..envs.arrays import BatchedEnvironment
from ..envs.registration import is_environment, make_batch
from .actor import Actor
from .extras import make_player, map_spec, privileged_size
from .levels import ActingConfig, MixtureBatch, Shares, in_words, widths


@dataclass(frozen=True, kw_only=True)
class ActorFactory(ActingConfig):
    """Everything that determines an actor except its index."""

    env: str  # Environment: short name, Gymnasium id or module:Class
    env_args: dict[str, Any] = field(default_factory=dict[str, Any])  # Parameters of the environment
    agent: AgentConfig  # The network
    num_envs: int  # Environments per actor
    env_workers: int = 0  # Processes that step the environments of an actor; 0: the actor's own process
    unroll_length: int  # Steps per unroll
    seed: int  # Seed of the run
    precision: str = "float32"  # The learner's; with bf16, a network on a CPU with support multiplies bfloat16 matrices
    device: str = "cpu"  # Device of the network
    resumed_at: int = 0  # Steps before the run was resumed: it then samples different levels than at its beginning
    trust_checkpoint: bool = False  # Whether saved third-party environments may be unpickled, which can run any code

    def make_batch(self, first_index: int = 0, num_envs: int | None = None, stage: int = -1) -> BatchedEnvironment:
        """Create environments of a stage, by default of the configured environment, the last stage."""
        parameters, count = self.env_args | self.levels.stages[stage], num_envs or self.num_envs
        batch: BatchedEnvironment = make_batch(self.env, count, first_index, self.env_workers, **parameters)
        batch.trusted = self.trust_checkpoint
        return batch

    def make_stage(self, first_index: int, stage: int | Shares) -> Any:
        """Create the environments of a stage of the curriculum, or of a mixture of stages by their shares."""
        if isinstance(stage, int):
            return self.make_batch(first_index, stage=stage)
        parts, begin = list[Any](), first_index
        for number, width in enumerate(widths(first_index, self.num_envs, stage)):
            if width:
                parts.append(self.make_batch(begin, width, number))
                begin += width
        return MixtureBatch(parts)

    def check_levels(self, environment: BatchedEnvironment) -> None:
        """Raise EngramError for a player, level replay or a curriculum that is impossible in `environment`, that of the
        last stage."""
        levels, player = self.levels, f"imitate is {self.imitate!r}"
        if self.imitate:
            refuse(isinstance(environment.single_action_space, spaces.Box), f"{player}; allowed with Box actions: none")
            refuse(levels.curriculum_mixture, f"{player}; allowed with curriculum_mixture: none")
            make_player(self.imitate, environment)
        if levels.level_replay:
            text = f"level_replay is {levels.level_replay}, but {self.env} does not accept levels; allowed: 0"
            refuse(not environment.replayable, text)
            text = f"level_replay_score is 'learnability', but {self.env} does not report 'solved'; allowed: error"
            refuse(levels.level_replay_score == "learnability" and "solved" not in environment.episode_fields, text)
        for stage, parameters in enumerate(levels.stages[:-1]):
            name = f"stage {stage + 1} of the curriculum ({in_words(parameters)})"
            with user_errors(name), closing(self.make_batch(num_envs=1, stage=stage)) as batch:
                for kind in ("single_observation_space", "single_action_space"):
                    actual, expected = getattr(batch, kind), getattr(environment, kind)
                    refuse(actual != expected, f"its {kind} is {actual}; allowed, as in the last stage: {expected}")

    def make_agent(self, batch: BatchedEnvironment) -> Agent:
        config = self.agent
        if is_environment(self.env):  # built-in environments use [rows, columns, features], even with few rows
            config = replace(config, torso=replace(config.torso, image_layout="channels-last"))
        privileged = privileged_size(self.env, batch) if config.critic == "privileged" else 0
        map_entry = map_spec(self.env, batch) if config.predict == "map" else None
        spec = observation_spec(batch.single_observation_space)
        if isinstance(spec, dict):  # entries hidden from the policy
            hidden = PRIVILEGED if privileged else "", MAP if map_entry else ""
            spec = {key: part for key, part in spec.items() if key not in hidden}
        agent = Agent(spec, action_spec(batch.single_action_space), config, privileged, map_entry)
        agent.rounded = self.precision == "bf16"
        return agent

    def make_actor(self, number: int, member: int = 0, life: int = 0) -> Actor:
        """Create actor `number`; the replacement of a failed one has a higher `life`, so it samples other levels."""
        first_index = number * self.num_envs
        batch = self.make_stage(first_index, self.levels.first_stage)
        seeds = np.random.SeedSequence(self.seed, spawn_key=(member, life, self.resumed_at))
        try:
            agent = self.make_agent(batch).to(self.device)
        except BaseException:
            batch.close()
            raise
        return Actor(
            batch,
            agent,
            unroll_length=self.unroll_length,
            seed=int(seeds.generate_state(1, np.uint64)[0]),
            first_index=first_index,
            number=number,
            member=member,
            config=self,
            make_environment=lambda stage: self.make_stage(first_index, stage),
        )


def observation_spec(space: spaces.Space[Any]) -> ObservationSpec:
    """Describe an observation space for the agent. Raises ValueError for unsupported spaces."""
    if isinstance(space, spaces.Dict):
        return {key: observation_spec(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Box):
        is_byte_image = space.dtype == np.uint8 and np.max(space.high, initial=0) > 1
        return ArraySpec(space.shape, 1 / 255 if is_byte_image else 1.0)
    raise ValueError(f"observation space {space} is not supported; supported: Box and (nested) Dict of Box")


def action_spec(space: spaces.Space[Any]) -> ActionSpec:
    """Describe an action space for the agent. Raises ValueError for unsupported spaces."""
    if isinstance(space, spaces.Discrete):
        return ChoiceSpec((int(space.n),))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return ChoiceSpec(tuple(int(n) for n in space.nvec))
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return BoxSpec(space.shape[0])
    raise ValueError(f"action space {space} is not supported; supported: Discrete, 1-dimensional MultiDiscrete and Box")
