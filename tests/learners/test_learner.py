"""One update: what it does to the weights, what it counts, and what it refuses to learn from."""

import math
from itertools import pairwise

import pytest
import torch

from engram.actors.factory import ActorFactory
from engram.actors.unroll import Unroll
from engram.agents.agent import Agent
from engram.agents.config import AgentConfig
from engram.agents.values import map_leaves
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner
from engram.learners.loss import Minibatch
from engram.learners.loss import loss as loss_of


def loss(agent: Agent, unroll: Unroll, config: LearnerConfig) -> torch.Tensor:
    return loss_of(Minibatch(agent, unroll, config, None, 1.0)).total


def make(core: str = "lstm", num_envs: int = 6, **config: object) -> tuple[Learner, Unroll]:
    factory = ActorFactory(
        env="boxworld",
        env_args={"path_lengths": 1, "num_distractors": 0, "max_steps": 10},
        agent=AgentConfig(core=core),
        num_envs=num_envs,
        unroll_length=20,
        seed=2,
    )
    torch.manual_seed(0)
    actor = factory.make_actor(0)
    agent = factory.make_agent(factory.make_batch())
    actor.unroll()
    return Learner(agent, LearnerConfig(**config), total_steps=10_000), actor.unroll()  # type: ignore[arg-type]


def weights(agent: Agent) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in agent.parameters()])


def test_counts_only_steps_whose_action_counted() -> None:
    learner, unroll = make()
    over = (unroll.env.terminated | unroll.env.truncated)[:-1]
    assert over.any()
    learner.step(unroll)
    assert learner.steps == 20 * 6 - int(over.sum())
    assert learner.updates == 1


def test_nothing_at_an_ignored_step_reaches_the_gradient() -> None:
    learner, unroll = make()
    dead = (unroll.env.terminated | unroll.env.truncated)[:-1]
    changed = unroll._replace(
        agent=unroll.agent._replace(
            action=torch.where(dead, (unroll.agent.action + 1) % 4, unroll.agent.action),
            logits=torch.where(dead.unsqueeze(-1), unroll.agent.logits + torch.randn(4), unroll.agent.logits),
        )
    )
    gradients = []
    for each in (unroll, changed):
        total = loss(learner.agent, each, learner.config)
        gradients.append(torch.autograd.grad(total, list(learner.agent.parameters())))
    assert dead.any()
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_gradient_is_that_of_the_episodes_taken_apart() -> None:
    """One environment with episode ends = its episodes as separate unrolls with their own bootstrap."""
    learner, unroll = make("lstm", num_envs=1, reduction="sum")
    agent, config = learner.agent, learner.config
    over = (unroll.env.terminated | unroll.env.truncated)[:, 0].tolist()
    total = loss(agent, unroll, config)
    edges = [0] + [t + 1 for t, end in enumerate(over[:-1]) if end] + [len(over)]
    parts = torch.zeros(())
    for number, (a, b) in enumerate(pairwise(edges)):
        if b - a < 2:
            continue
        piece = unroll._replace(
            initial_state=unroll.initial_state if number == 0 else agent.initial_state(1),
            env=map_leaves(lambda leaf, a=a, b=b: leaf[a:b], unroll.env),
            agent=type(unroll.agent)(*(leaf[a : b - 1] for leaf in unroll.agent)),
        )
        parts = parts + loss(agent, piece, config)
    assert len(edges) > 2
    torch.testing.assert_close(total, parts, rtol=1e-4, atol=1e-4)


def test_a_non_finite_loss_is_skipped_and_counted() -> None:
    learner, unroll = make()
    before = weights(learner.agent)
    reward = unroll.env.reward.clone()
    reward[3, 0] = math.nan
    metrics = learner.step(unroll._replace(env=unroll.env._replace(reward=reward)))
    assert torch.equal(weights(learner.agent), before)
    assert metrics["learner/skipped"] == 1
    assert learner.step(unroll)["learner/skipped"] == 1
    assert not torch.equal(weights(learner.agent), before)


def test_learning_rate_falls_linearly_with_consumed_steps() -> None:
    learner, unroll = make(lr=1e-3)
    assert learner.step(unroll)["learner/lr"] == 1e-3
    done = learner.steps
    assert learner.step(unroll)["learner/lr"] == pytest.approx(1e-3 * (1 - done / 10_000))


def test_the_entropy_cost_falls_linearly_and_the_learning_rate_warms_up() -> None:
    learner, unroll = make(lr=1e-3, lr_schedule="constant", lr_warmup=400, entropy_schedule="linear", entropy_cost=0.1)
    for step in range(3):
        done = learner.steps
        metrics = learner.step(unroll)
        assert metrics["learner/lr"] == pytest.approx(1e-3 * min(1, (done + 1) / 400))
        cost = 0.1 * (1 - done / 10_000)
        assert metrics["loss/entropy"] == pytest.approx(-cost * metrics["policy/entropy"], rel=1e-4), step


@pytest.mark.parametrize(("algorithm", "optimizer"), [("vtrace", "adam"), ("a2c", "rmsprop_tf"), ("ppo", "adam")])
def test_continues_exactly_from_its_state(algorithm: str, optimizer: str) -> None:
    learner, unroll = make(algorithm=algorithm, optimizer=optimizer)
    learner.step(unroll)
    other, _ = make(algorithm=algorithm, optimizer=optimizer)
    other.load_state_dict(learner.state_dict())
    assert learner.step(unroll) == other.step(unroll)
    assert torch.equal(weights(learner.agent), weights(other.agent))
    assert (other.steps, other.updates) == (learner.steps, learner.updates)


def test_bptt_length_cuts_the_gradient_of_the_update() -> None:
    gradients = []
    for length in (0, 20, 5):
        learner, unroll = make(bptt_length=length)
        total = loss(learner.agent, unroll, learner.config)
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(total, list(learner.agent.parameters()))]))
    assert not torch.allclose(gradients[0], gradients[2], rtol=1e-3, atol=1e-7)


def test_on_policy_ratios_are_one() -> None:
    factory = ActorFactory(env="boxworld", agent=AgentConfig(core="lstm"), num_envs=4, unroll_length=10, seed=0)
    actor = factory.make_actor(0)
    learner = Learner(actor.agent, LearnerConfig(), total_steps=1000)
    metrics = learner.step(actor.unroll())
    assert metrics["vtrace/rho_mean"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["policy/kl_behavior"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("discount", 1.5),
        ("lr", 0.0),
        ("entropy_cost", -1.0),
        ("algorithm", "pppo"),
        ("discount", math.nan),
    ],
)
def test_values_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} is .*allowed|unknown {field} 'pppo'; did you mean: ppo"):
        LearnerConfig(**{field: value})  # type: ignore[arg-type]


def test_compiling_leaves_the_names_of_the_weights_alone() -> None:
    learner, _ = make(compile=True)
    assert type(learner.agent.core.unroll).__name__ == "CompiledUnroll"
    assert list(learner.agent.state_dict()) == list(make()[0].agent.state_dict())
