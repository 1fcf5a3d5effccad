"""Actors of several members advance together: at every step one batched call computes the networks of all members.

Weights, recurrent states and outputs of the environments are stacked; none depends on those of another member, and each
member samples its actions with its own random numbers. Results differ from those of `Actor.unroll` only by rounding in
matrix multiplications. On a GPU, launching an operation for nine members takes no longer than for one; a CPU, limited
by arithmetic, gains nothing.

With a separate device, several groups of actors take turns at every step, so that the environments of one group step
while the device computes the networks of another.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..agents.agent import Agent, AgentState
from ..agents.cores.core import map_state
from ..agents.specs import best, noise_like, sample_with_noise
from ..agents.values import AgentOutput, EnvOutput, Weights, map_leaves
from .actor import Actor
from .packed import fetch
from .unroll import Unroll

Group = Sequence[tuple[Actor, Weights]]  # Actors of different members, with their weights; unroll lengths are equal


def unroll_groups(groups: Mapping[int, Group], failed: Callable[[int, BaseException], None]) -> dict[int, list[Unroll]]:
    """Return, by index of the group, one unroll of each of its actors, in their order. A group in which an actor raises
    an exception is left out; `failed` is called with its index and the exception."""
    steps = next(iter(groups.values()))[0][0].unroll_length
    under_way = {number: _GroupUnroll(group) for number, group in groups.items()}
    for t in range(steps + 1):
        for number, group in list(under_way.items()):
            try:
                if t == 0:
                    group.begin()
                else:
                    group.step_environments(t - 1)
                if t < steps:
                    group.step_networks(t)
            except (Exception, SystemExit) as problem:
                del under_way[number]
                failed(number, problem)
    return {number: group.finish() for number, group in under_way.items()}


class _GroupUnroll:
    """Unrolls of a group of actors, in progress."""

    def __init__(self, group: Group) -> None:
        self._actors = [actor for actor, _ in group]
        self._weights = [weights for _, weights in group]

    def begin(self) -> None:
        """Call `Actor.begin` of all actors."""
        self._buffers = [actor.begin(weights) for actor, weights in zip(self._actors, self._weights, strict=True)]
        self._networks = _Networks(self._actors) if len(self._actors) > 1 else None

    def step_networks(self, t: int) -> None:
        """Compute all networks at step t, and start copying the actions to the CPU."""
        pairs = list(zip(self._actors, self._buffers, strict=True))
        envs = [actor.env_output(buffers, t) for actor, buffers in pairs]
        if self._networks is None:
            ((actor, buffers),) = pairs
            results = [actor.agent.step(envs[0], actor.state, actor.generator, buffers.initial)]
        else:
            results = self._networks.step(envs, [buffers.initial for buffers in self._buffers])
        self._outputs = [output for output, _ in results]
        for actor, (_, state) in zip(self._actors, results, strict=True):
            actor.state = state
        self._actions: list[Callable[[], NDArray[Any]]] = [fetch(output.action) for output in self._outputs]

    def step_environments(self, t: int) -> None:
        """Step the environments of all actors with the actions of step t."""
        parts = zip(self._actors, self._buffers, self._outputs, self._actions, strict=True)
        for actor, buffers, output, action in parts:
            actor.step_environment(buffers, t, output, action())

    def finish(self) -> list[Unroll]:
        """Call `Actor.finish` of all actors, and return their unrolls."""
        return [actor.finish(buffers) for actor, buffers in zip(self._actors, self._buffers, strict=True)]


class _Networks:
    """The networks of several actors as one, with their current weights."""

    def __init__(self, actors: Sequence[Actor]) -> None:
        from torch.func import stack_module_state

        self._actors = actors
        self._call = _Respond(actors[0].agent)
        self._initial: AgentState | None = None  # Initial states of all members, if available
        self._weights = stack_module_state([_Respond(actor.agent) for actor in actors])  # pyright: ignore[reportArgumentType]

    @torch.inference_mode()
    def step(
        self, envs: Sequence[EnvOutput], initial: Sequence[AgentState | None]
    ) -> list[tuple[AgentOutput, AgentState]]:
        """Compute `Agent.step` for every actor, each with its own state and generator."""
        from torch.func import functional_call, vmap

        env = map_leaves(_stack, *envs)
        state = map_state(_stack, *(actor.state for actor in self._actors))
        features = None  # on a CPU, features of repeated observations are computed once, before the members' networks
        if self._actors[0].device.type == "cpu":
            pairs = zip(self._actors, envs, strict=True)
            features = torch.stack([actor.agent.features(part.observation) for actor, part in pairs])
        if self._initial is None and initial[0] is not None:
            self._initial = map_state(_stack, *initial)

        def one(weights: Any, buffers: Any, *inputs: Any) -> tuple[Tensor, Tensor, AgentState]:
            return functional_call(self._call, (weights, buffers), inputs)

        inputs = (env, state, features, self._initial)
        dims = (0, 0, *(map_leaves(lambda _: 0, part) for part in inputs))  # not every environment has masks
        logits, value, after = vmap(one, dims)(*self._weights, *inputs)
        action = self._actions(logits)
        outputs, states = AgentOutput(action, logits, value), after._replace(previous_action=action)
        return [
            (AgentOutput(*(leaf[m] for leaf in outputs)), map_state(lambda x, m=m: x[m], states))
            for m in range(len(self._actors))
        ]

    def _actions(self, logits: Tensor) -> Tensor:
        """Choose the actions of all members [M, B, ...]: the best, or samples from each member's own generator."""
        agent = self._actors[0].agent
        if agent.greedy:
            return best(agent.action_spec, logits)
        parts = zip(logits, self._actors, strict=True)
        noise = torch.stack([noise_like(agent.action_spec, part, actor.generator) for part, actor in parts])
        return sample_with_noise(agent.action_spec, logits, noise)


class _Respond(nn.Module):
    """Agent as a module whose call is `respond`, so that its weights can be replaced for a call."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, *inputs: Any) -> tuple[Tensor, Tensor, AgentState]:
        """Call `Agent.respond` with the same arguments and return its results."""
        return self.agent.respond(*inputs)


def _stack(*leaves: Tensor) -> Tensor:
    return torch.stack(leaves)
