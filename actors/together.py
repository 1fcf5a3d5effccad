"""Members of a population act in step: at every step one batched call answers for the networks of all.

Weights, memories and what the environments say are laid side by side; none depends on another member's, and each draws
its actions with its own random numbers. Answers differ from those of a network alone by the rounding of products.
Starting an operation for nine members takes a GPU no longer than for one; a CPU, which is busy with the arithmetic of
one, gains nothing.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..agents.agent import Agent, AgentState
from ..agents.cores.core import map_state
from ..agents.specs import best, drawn, noise_like
from ..agents.values import AgentOutput, map_leaves
from .questions import Answer, Question, to_answer
from .unroll import Unroll

Steps: TypeAlias = Generator[Question, Answer | None, Unroll]


class InStep:
    """Unrolls of one length, which advance together.

    Args:
        steps: as `Actor.unrolling` makes them, one for each member.
    """

    def __init__(self, steps: Sequence[Steps]) -> None:
        self._steps = steps
        self._answers: Sequence[Answer | None] = [None] * len(steps)
        self._answer: Callable[[Sequence[Question]], list[Answer]] | None = None
        self.done: list[Unroll] = []
        """The unrolls, in the order of `steps`, after the last step."""

    def advance(self) -> bool:
        """One step of all; whether it was the last one."""
        questions: list[Question] = []
        for steps, answer in zip(self._steps, self._answers, strict=True):
            try:
                questions.append(steps.send(answer))
            except StopIteration as end:
                self.done.append(end.value)
        if self.done:
            return True
        if self._answer is None:
            alone = len(questions) == 1
            self._answer = _each_alone if alone else _Networks([question.agent for question in questions]).answers
        self._answers = self._answer(questions)
        return False


class _Networks:
    """The networks of several members as one, with the weights that they have now."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        from torch.func import stack_module_state

        self._first, self._call = agents[0], _Respond(agents[0])
        self._initial: AgentState | None = None
        """Initial states of all members, where they are known."""
        self._weights = stack_module_state([_Respond(agent) for agent in agents])  # pyright: ignore[reportArgumentType]

    @torch.inference_mode()
    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        """As `alone` of every question."""
        from torch.func import functional_call, vmap

        env = map_leaves(_side_by_side, *(question.env for question in questions))
        state = map_state(_side_by_side, *(question.state for question in questions))
        known = [question.features for question in questions if question.features is not None]
        if self._initial is None and questions[0].initial is not None:
            self._initial = map_state(_side_by_side, *(question.initial for question in questions))

        def one(weights: Any, buffers: Any, *said: Any) -> tuple[Tensor, Tensor, AgentState]:
            return functional_call(self._call, (weights, buffers), said)

        said = (env, state, torch.stack(known) if known else None, self._initial)
        dims = (0, 0, *(map_leaves(lambda _: 0, part) for part in said))  # an environment may have no masks
        logits, value, after = vmap(one, dims)(*self._weights, *said)
        action = self._actions(logits, questions)
        outputs, states = AgentOutput(action, logits, value), after._replace(previous_action=action)
        return [
            to_answer(
                AgentOutput(*(leaf[number] for leaf in outputs)), map_state(lambda x, number=number: x[number], states)
            )
            for number in range(len(questions))
        ]

    def _actions(self, logits: Tensor, questions: Sequence[Question]) -> Tensor:
        """Those of every member [M, B, ...], drawn with its own generator."""
        spec = self._first.action_spec
        if self._first.greedy:
            return best(spec, logits)
        own = zip(logits, questions, strict=True)
        return drawn(spec, logits, torch.stack([noise_like(spec, part, each.generator) for part, each in own]))


class _Respond(nn.Module):
    """An agent as a module whose call is `respond`, so that its weights can be exchanged for a call."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, *said: Any) -> tuple[Tensor, Tensor, AgentState]:
        """`Agent.respond` with the same arguments and results."""
        return self.agent.respond(*said)


def _each_alone(questions: Sequence[Question]) -> list[Answer]:
    return [question.alone() for question in questions]


def _side_by_side(*leaves: Tensor) -> Tensor:
    return torch.stack(leaves)
