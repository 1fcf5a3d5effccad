"""One actor: a batch of environments, an agent with memory, and the unrolls that they produce; and actors for every
member of a population. Any process can act for any member, so a population needs no more processes than a learner."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ..agents.agent import Agent, AgentState
from ..agents.cores.core import map_state, state_leaves
from ..agents.values import AgentOutput, EnvOutput, Weights, load, map_leaves
from ..envs.arrays import BatchedEnvironment, check_masks
from .extras import Extras
from .levels import ActingConfig, Replay, Stagger
from .packed import Packer, take_over
from .unroll import Unroll, join

_log = logging.getLogger(__name__)


class Actor:
    """Actor that resets and steps `batch` with `agent` and returns unrolls of T = `unroll_length` >= 1 steps.

    Args:
        seed: seeds the environments and, with `first_index`, the sampling of actions.
        first_index: index of the first environment among all environments of the run.
        number, member: recorded in the unrolls.
        make_environment: returns the environments of a stage of the curriculum; `batch` is that of the first stage.
    """

    def __init__(
        self,
        batch: BatchedEnvironment,
        agent: Agent,
        *,
        unroll_length: int,
        seed: int,
        first_index: int = 0,
        number: int = 0,
        member: int = 0,
        config: ActingConfig = ActingConfig(),  # noqa: B008 (it is frozen)
        make_environment: Callable[[Any], BatchedEnvironment] | None = None,
    ) -> None:
        self.batch, self.agent = batch, agent
        self.unroll_length, self.first_index, self.number, self.member = unroll_length, first_index, number, member
        self.version, self.beginnings = -1, 0
        self._config, self._make_environment = config, make_environment
        self.stage = config.levels.first_stage
        self.device = agent.policy.weight.device
        self._at_step: Callable[[], None] = lambda: None
        self._packer = None if self.device.type == "cpu" else Packer(self.device)
        self.generator = torch.Generator(self.device)
        sampling = np.random.SeedSequence(seed, spawn_key=(first_index, member, 1)).generate_state(1, np.uint64)[0]
        self.generator.manual_seed(int(sampling) >> 1)
        self._restart(seed)

    def call_at_steps(self, call: Callable[[], None]) -> None:
        """Call a function after every step of the batch and, if its environments step one by one, of each environment;
        its exceptions end the unroll."""
        self._at_step = call
        batches: Any = getattr(self.batch, "batches", (self.batch,))
        for batch in batches:
            if hasattr(batch, "at_step"):
                batch.at_step = call

    def close(self) -> None:
        self.batch.close()

    def load(self, weights: Weights) -> None:
        """Use these weights from now on. Weights copied from another member begin new episodes: they cannot use
        recurrent states of other weights, and episodes in progress must not count toward the member's score."""
        if weights.version != self.version:
            if isinstance(weights.values, torch.Tensor):
                take_over([weights.values], weights.ready, self.device)
            load(self.agent, weights.values)
            self.version = weights.version
            if not self._begun:  # the initial state may be learned, so it depends on the weights
                self.state = self.agent.initial_state(self.batch.num_envs)
        if weights.beginnings != self.beginnings:
            self.beginnings = weights.beginnings
            self._enter(weights.stage)
            self._restart(int(torch.randint(2**62, (), generator=self.generator, device=self.device)))

    def _enter(self, stage: int | Sequence[float]) -> None:
        """Create the environments of this stage or mixture, to be restarted or restored."""
        stage = stage if isinstance(stage, int) else tuple(stage)
        if stage != self.stage:
            assert self._make_environment is not None, "only actors with a curriculum change their stage"
            batch = self._make_environment(stage)
            self.batch.close()
            self.batch, self.stage = batch, stage
            self._extras = Extras(batch, self.agent.extras, self._config.imitate, self._config.novelty)
            self.call_at_steps(self._at_step)

    def _restart(self, seed: int) -> None:
        n, observation = self.batch.num_envs, self.batch.new_observation()
        self.batch.reset_into(observation, seed)
        self._extras = Extras(self.batch, self.agent.extras, self._config.imitate, self._config.novelty)
        flags = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        mask = None if self.batch.action_mask is None else np.ones_like(self.batch.action_mask)
        first: Any = (observation, np.zeros(n, np.float32), *flags, mask, self._extras.arrays())
        self._env_output: Any = EnvOutput(*first)  # Output at the last step, separate arrays [N, ...]
        self._extras.write(self._env_output.extras, observation, np.ones(n, np.bool_))
        self._mask(self._env_output)
        self._begun = False
        self.state: AgentState = self.agent.initial_state(n)
        """Recurrent state before the next step; callers may change it between two unrolls."""
        config, levels = self._config, self._config.levels
        self._stagger = Stagger(levels.stagger, self.first_index, n) if levels.stagger else None
        self._replay: Replay | None = None
        if levels.level_replay:
            self._replay = Replay(levels, config.discount, (seed, self.first_index), n, config.reward_clip)
        self._returns, self._lengths = np.zeros(n, np.float64), np.zeros(n, np.int64)

    def unroll(self, weights: Weights | None = None) -> Unroll:
        """Run T steps with one version of the weights (the loaded ones if None)."""
        buffers = self.begin(weights)
        for t in range(self.unroll_length):
            env = self.env_output(buffers, t)
            output, self.state = self.agent.step(env, self.state, self.generator, buffers.initial)
            self.step_environment(buffers, t, output, output.action.cpu().numpy())
        return self.finish(buffers)

    def begin(self, weights: Weights | None = None) -> "Buffers":
        """Prepare an unroll with these weights (the loaded ones if None)."""
        if weights is not None:
            self.load(weights)
        self._begun = True
        self.agent.begin_unroll(self.unroll_length)
        steps = self.unroll_length
        env = map_leaves(lambda x: _allocate(x, steps), self._env_output)  # the environments write directly into it
        with torch.inference_mode():
            initial = self.agent.initial_state(self.batch.num_envs)
        tensors, none = map_leaves(torch.from_numpy, env), np.zeros((0, 3 + len(self.batch.episode_fields)), np.float32)
        return Buffers(tensors, _steps(env), _steps(tensors), self.state, initial, [none])

    def env_output(self, buffers: "Buffers", t: int) -> EnvOutput:
        """Return the environments' output at step t, leaves [N, ...], copied together to the network's device."""
        env = buffers.tensor_steps[t]
        if self._packer is None:
            return env
        leaves: list[torch.Tensor] = []
        map_leaves(leaves.append, env)
        copied = iter(self._packer.send(leaves)[0])
        env = map_leaves(lambda _: next(copied), env)
        buffers.shown.append(env.observation)
        return env

    def step_environment(self, buffers: "Buffers", t: int, output: AgentOutput, action: NDArray[Any]) -> None:
        """Step the environments after the agent's output at step t; `action` is its action [N, ...] on the CPU."""
        before, after = buffers.steps[t : t + 2]
        buffers.outputs.append(output)
        if self._replay:
            self._replay.see(before, output.value.cpu().numpy(), cast(Any, self.batch).streams, self._solved(before))
        self.batch.step_into(action, after.observation, after.reward, after.terminated, after.truncated)
        self._at_step()
        self._mask(after)
        if after.extras is not None:
            self._extras.write(after.extras, after.observation, before.terminated | before.truncated)
        self._count(before, after, buffers.episodes)

    def finish(self, buffers: "Buffers") -> Unroll:
        self.agent.end_unroll()
        self._env_output = map_leaves(np.copy, buffers.steps[-1])
        env = buffers.tensors
        if self._packer is not None:  # observations on the network's device; flags stay on the CPU, which counts steps
            last = map_leaves(lambda x: x[-1].to(self.device), env.observation)
            env = env._replace(observation=map_leaves(lambda *x: torch.stack(x), *buffers.shown, last))
        return Unroll(
            initial_state=map_state(torch.clone, buffers.initial_state),
            env=env,
            agent=AgentOutput(*(torch.stack(leaves) for leaves in zip(*buffers.outputs, strict=True))),
            weights_version=torch.full((self.batch.num_envs,), self.version),
            member=self.member,
            actor=self.number,
            episodes=torch.from_numpy(np.concatenate(buffers.episodes)),
            seconds=time.perf_counter() - buffers.started,
        )

    def _mask(self, env: Any) -> None:
        """Copy the mask of valid actions; where an episode ended, all are valid, since the next action is ignored."""
        if env.action_mask is not None:
            mask = self.batch.action_mask
            assert mask is not None, "an environment with masks has one at every step"
            np.logical_or(mask, (env.terminated | env.truncated)[:, None], out=env.action_mask)
            spec: Any = self.agent.action_spec  # environments with Box actions have no masks
            check_masks(getattr(self.batch, "name", type(self.batch).__name__), env.action_mask, spec.choices)

    def _count(self, before: Any, after: Any, episodes: list[NDArray[np.float32]]) -> None:
        """Update episode returns and lengths; the action at an episode's last step is ignored and not counted."""
        self._returns += after.reward
        self._lengths += ~(before.terminated | before.truncated)
        over = after.terminated | after.truncated
        if self._stagger is not None and (cut := self._stagger.due(over)) is not None:
            self.batch.cut(cut)
            after.truncated[cut] = True
            self._returns[cut], self._lengths[cut] = 0.0, 0  # partial episodes do not count
        if over.any():
            ended = np.flatnonzero(over)
            columns = np.stack([ended + self.first_index, self._returns[ended], self._lengths[ended]], 1)
            episodes.append(np.concatenate([columns.astype(np.float32), self.batch.episode_facts(ended)], 1))
            self._returns[ended], self._lengths[ended] = 0.0, 0

    def _solved(self, env: Any) -> NDArray[np.bool_]:
        """Return which episodes that end at this step were solved, bool [N]; none if this is not reported."""
        solved, ended = np.zeros(self.batch.num_envs, np.bool_), np.flatnonzero(env.terminated | env.truncated)
        if len(ended) and "solved" in self.batch.episode_fields:
            solved[ended] = self.batch.episode_facts(ended)[:, self.batch.episode_fields.index("solved")] == 1
        return solved

    def save(self) -> dict[str, Any]:
        """Return everything on which the next unroll depends, except the weights."""
        return {
            "batch": self.batch.save(),
            "state": [leaf.clone() for leaf in state_leaves(self.state)],
            "extras": self._extras.save(),
            "row": map_leaves(np.copy, self._env_output)._asdict(),
            "generator": self.generator.get_state(),
            "copies": self.beginnings,
            "stage": self.stage,
            "stagger": self._stagger.left.copy() if self._stagger else None,
            "replay": self._replay.save() if self._replay else None,
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        self._begun = True
        self._enter(saved["stage"])
        self.batch.restore(saved["batch"])
        leaves = iter(saved["state"])
        self.state = map_state(lambda _: torch.as_tensor(next(leaves)).to(self.device, copy=True), self.state)
        self._env_output = map_leaves(np.array, EnvOutput(**saved["row"]))
        self._extras.restore(saved["extras"])
        generator = torch.as_tensor(saved["generator"])
        if generator.shape == self.generator.get_state().shape:  # else saved on another kind of device
            self.generator.set_state(generator)
        self.beginnings = saved["copies"]
        if self._stagger:
            self._stagger.left = np.array(saved["stagger"])
        if self._replay:
            self._replay.restore(saved["replay"])
        self._returns[:] = saved["returns"]
        self._lengths[:] = saved["lengths"]


@dataclass
class Buffers:
    tensors: EnvOutput  # Steps 0..T, leaves [T + 1, N, ...]
    steps: list[Any]  # Views of each step as numpy arrays, which share memory with `tensors`
    tensor_steps: list[EnvOutput]  # Views of each step
    initial_state: AgentState  # Recurrent state at step 0
    initial: AgentState  # Initial state of an episode with these weights
    episodes: list[NDArray[np.float32]]  # Finished episodes, as `Unroll.episodes`
    outputs: list[AgentOutput] = field(default_factory=list[AgentOutput])
    shown: list[Any] = field(default_factory=list[Any])  # Observations of each step on the network's device, if not CPU
    started: float = field(default_factory=time.perf_counter)


def _allocate(first: NDArray[Any], steps: int) -> NDArray[Any]:
    array = np.empty((steps + 1, *first.shape), first.dtype)
    array[0] = first
    return array


def _steps(env: Any) -> list[Any]:
    if env.action_mask is None and env.extras is None and not isinstance(env.observation, dict):
        return [EnvOutput(*leaves) for leaves in zip(*env[:4], strict=True)]
    return [map_leaves(lambda x, t=t: x[t], env) for t in range(len(env.reward))]


MakeActor = Callable[[int, int, int], Actor]  # (number, member, life) -> Actor


class WeightsVersion(NamedTuple):
    """Reference to weights sent earlier, since fetching weights takes longer than the rest of a request."""

    member: int
    version: int


class MemberActors:
    """Actors of slot `number`: one per member served, each with separate environments and recurrent state. `life`
    counts the earlier actors of the slot."""

    def __init__(self, make_actor: MakeActor, number: int, life: int) -> None:
        self._make_actor, self.number, self.life = make_actor, number, life
        self._actors: dict[int, Actor] = {}
        self.progress = 0  # Counter that increases while the environments step, also within an unroll

    def actor(self, member: int) -> Actor:
        if member not in self._actors:
            self._actors[member] = self._make_actor(self.number, member, self.life)
            self._actors[member].call_at_steps(self._note_step)
        return self._actors[member]

    def _note_step(self) -> None:
        self.progress += 1

    def unroll(self, weights: Weights) -> Unroll:
        return self.actor(weights.member).unroll(weights)

    def unrolls(self, weights: Weights | WeightsVersion, count: int) -> Unroll:
        """Return the next `count` unrolls of the weights' member, joined along the batch axis."""
        actor, sent = self.actor(weights.member), weights if isinstance(weights, Weights) else None
        if sent is None and weights.version != actor.version:
            raise RuntimeError(f"version {weights.version} of member {weights.member}'s weights was lost in transfer")
        return join([actor.unroll(sent), *(actor.unroll() for _ in range(count - 1))])

    def save(self) -> dict[int, Any]:
        return {member: actor.save() for member, actor in self._actors.items()}

    def restore(self, saved: dict[int, Any]) -> None:
        for member, state in saved.items():
            self.actor(member).restore(state)

    def close(self) -> None:
        """Close the environments of all members; exceptions become warnings."""
        while self._actors:
            try:
                self._actors.popitem()[1].close()
            except Exception as problem:
                _log.warning("actor %d: close() of an environment raised %r", self.number, problem)
