"""Requests and answers between actors and a network at every step, so that one call can serve several actors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from ..agents.agent import Agent, AgentState
from ..agents.values import AgentOutput, EnvOutput
from .packed import fetch


class Answer(NamedTuple):
    """Output of a network for one step of B environments."""

    output: AgentOutput
    state: AgentState
    """The agent's state after the step."""
    action: Callable[[], NDArray[Any]]
    """Returns the actions on the CPU, as soon as they are there."""


def to_answer(output: AgentOutput, state: AgentState) -> Answer:
    """An answer whose actions are on their way to the CPU."""
    return Answer(output, state, fetch(output.action))


class Question(NamedTuple):
    """One step of B environments for a network to answer: the arguments of `Agent.step`, in their order."""

    agent: Agent
    env: EnvOutput
    state: AgentState
    generator: torch.Generator
    features: torch.Tensor | None
    """The torso's, where they are known."""
    initial: AgentState | None
    """The state that an episode begins with, where it is known."""

    def alone(self) -> Answer:
        """The answer of this network."""
        return to_answer(*self.agent.step(*self[1:]))
