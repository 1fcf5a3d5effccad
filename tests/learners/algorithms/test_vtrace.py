"""V-trace's own settings: the clip of the policy's ratio, and several passes over a batch."""

import torch

from engram.actors.factory import ActorFactory
from engram.actors.unroll import Unroll
from engram.agents.config import AgentConfig
from engram.agents.specs import ChoiceSpec
from engram.learners.algorithms import make_algorithm
from engram.learners.algorithms.algorithm import Pass, Targets
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner
from engram.learners.returns import Transitions


def test_a_step_that_has_moved_far_enough_teaches_the_policy_nothing() -> None:
    """Ratios 1.3, 1.3, 0.7, 0.7, 1.1 and advantages of both signs, one next to the other; the clip is at 0.2."""
    ratios = torch.tensor([[1.3], [1.3], [0.7], [0.7], [1.1]])
    advantages = torch.tensor([[2.0], [-2.0], [2.0], [-2.0], [2.0]])
    log_policy = ratios.log().requires_grad_()
    zeros, valid = torch.zeros(5, 1), torch.ones(5, 1, dtype=torch.bool)
    now = Pass(Transitions(zeros, zeros, valid), zeros, zeros[0], log_policy, zeros, *[zeros] * 3, ChoiceSpec((1,)))
    targets = Targets(zeros, advantages)
    wanted = {0.0: [-2.0, 2.0, -2.0, 2.0, -2.0], 0.2: [0.0, 2.0, -2.0, 0.0, -2.0]}
    for clip, gradient in wanted.items():
        policy = make_algorithm("vtrace", policy_clip=clip).terms(now, targets).policy
        (found,) = torch.autograd.grad(policy.sum(), log_policy)
        assert found.flatten().tolist() == gradient


def test_two_passes_are_two_updates_from_the_same_batch() -> None:
    def made(**settings: int) -> tuple[Learner, Unroll]:
        factory = ActorFactory(env="t-maze", agent=AgentConfig(core="lstm"), num_envs=4, unroll_length=6, seed=3)
        torch.manual_seed(0)
        agent = factory.make_agent(factory.make_batch())
        config = LearnerConfig(algorithm_args=dict(settings), lr_schedule="constant")
        return Learner(agent, config, total_steps=1000), factory.make_actor(0).unroll()

    (twice, batch), (once, _) = made(epochs=2), made()
    twice.step(batch)
    for _ in range(2):
        once.step(batch)
    for a, b in zip(twice.agent.parameters(), once.agent.parameters(), strict=True):
        assert torch.equal(a, b)
    assert twice.steps == once.steps // 2
