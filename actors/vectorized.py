"""Actors of several members advance together: at every step one batched call computes the networks of all members.

Each member samples its actions with its own random numbers. Results differ from those of `Actor.unroll` only by
rounding in matrix multiplications. On a GPU, launching an operation for nine members takes no longer than for one; a
CPU gains nothing. With a separate device, several groups of actors take turns at every step: the environments of one
group step while the device computes the networks of another.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
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
    """Return one unroll of each actor, by index of the group. A group in which an actor raises an exception is left
    out; `failed` is called with its index and the exception."""
    unrolls: dict[int, list[Unroll]] = {}
    under_way = {number: _steps(group) for number, group in groups.items()}
    while under_way:
        for number, steps in list(under_way.items()):
            try:
                next(steps)
                continue
            except StopIteration as end:
                unrolls[number] = end.value
            except (Exception, SystemExit) as problem:
                failed(number, problem)
            del under_way[number]
    return unrolls


def _steps(group: Group) -> Generator[None, None, list[Unroll]]:
    """Return one unroll of each actor of a group; pause at every step, while the device computes the actions."""
    parts = [(actor, actor.begin(weights)) for actor, weights in group]
    networks = _Networks([actor for actor, _ in group]) if len(group) > 1 else None
    for t in range(group[0][0].unroll_length):
        envs = [actor.env_output(buffers, t) for actor, buffers in parts]
        if networks:
            results = networks.step(envs, [buffers.initial for _, buffers in parts])
        else:
            ((actor, buffers),) = parts
            results = [actor.agent.step(envs[0], actor.state, actor.generator, buffers.initial)]
        outputs: list[tuple[AgentOutput, Callable[[], NDArray[Any]]]] = []
        for (actor, _), (output, state) in zip(parts, results, strict=True):
            actor.state = state
            outputs.append((output, fetch(output.action)))
        yield
        for (actor, buffers), (output, action) in zip(parts, outputs, strict=True):
            actor.step_environment(buffers, t, output, action())
    return [actor.finish(buffers) for actor, buffers in parts]


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
        features = None  # on a CPU, features of repeated observations are computed once
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
    """Agent whose call is `respond`, so that its weights can be replaced for a call."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, *inputs: Any) -> tuple[Tensor, Tensor, AgentState]:
        return self.agent.respond(*inputs)


def _stack(*leaves: Tensor) -> Tensor:
    return torch.stack(leaves)
