"""Every registered algorithm fulfills the learner's contract: exact resume, independent environments, no NaN."""

import math
from pathlib import Path

import pytest
import torch

from engram.actors.factory import ActorFactory
from engram.actors.unroll import Unroll, some_environments
from engram.agents.config import AgentConfig
from engram.launch.train import command
from engram.learners import checkpoints
from engram.learners.algorithms import algorithm_class, algorithm_names
from engram.learners.algorithms.algorithm import Targets
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner
from engram.learners.loss import METRICS, Minibatch, evaluate, loss
from runs import TINY

EXAMPLE = "engram.examples.clipped_policy_gradient:ClippedPolicyGradient"
ALGORITHMS = [*algorithm_names(), EXAMPLE]


def make(algorithm: str, **config: object) -> tuple[Learner, Unroll]:
    factory = ActorFactory(
        env="cued-catch",
        agent=AgentConfig(core="gru", core_args={"hidden_size": 8}),
        num_envs=6,
        unroll_length=12,
        seed=2,
    )
    torch.manual_seed(0)
    agent = factory.make_agent(factory.make_batch())
    return Learner(agent, LearnerConfig(algorithm=algorithm, **config), 10_000), factory.make_actor(0).unroll()  # type: ignore[arg-type]


def weights(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.agent.parameters()])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_learns_and_names_its_metrics(algorithm: str) -> None:
    learner, unroll = make(algorithm)
    before = weights(learner)
    metrics = learner.step(unroll)
    assert not torch.equal(before, weights(learner))
    assert set(algorithm_class(algorithm).metrics) < set(metrics)
    assert all(math.isfinite(value) for value in metrics.values())
    assert learner.updates == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_loss_of_a_batch_is_the_sum_over_its_environments(algorithm: str) -> None:
    learner, unroll = make(algorithm, reduction="sum")
    with torch.no_grad():
        targets = learner.config.method.targets(evaluate(learner.agent, unroll, learner.config))
    groups = torch.tensor([4, 0, 5]), torch.tensor([1, 3, 2])

    def sums(batch: Unroll, targets: Targets) -> torch.Tensor:
        """Losses are sums already; the other metrics are means over the valid steps."""
        metrics = loss(Minibatch(learner.agent, batch, learner.config, targets, 1.0)).metrics
        losses = sum(name.startswith("loss/") for name in METRICS)
        return torch.cat(
            [metrics[:losses], metrics[losses:] * (~(batch.env.terminated | batch.env.truncated)[:-1]).sum()]
        )

    whole = sums(unroll, targets)
    parts = [sums(some_environments(unroll, group), Targets(*(x[:, group] for x in targets))) for group in groups]
    torch.testing.assert_close(whole, parts[0] + parts[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_batch_with_a_number_that_is_none_changes_nothing(algorithm: str) -> None:
    learner, unroll = make(algorithm)
    before = weights(learner)
    reward = unroll.env.reward.clone()
    reward[3] = math.nan
    assert learner.step(unroll._replace(env=unroll.env._replace(reward=reward)))["learner/skipped"] >= 1
    assert torch.equal(weights(learner), before)
    learner.step(unroll)
    assert not torch.equal(weights(learner), before)


@pytest.mark.integration
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_resumed_run_ends_with_the_weights_of_the_uninterrupted_one(tmp_path: Path, algorithm: str) -> None:
    words = [*TINY, "--sync", "--local", "--algorithm", algorithm, "--lr-schedule", "constant"]
    command.main([*words, "--total-steps", "192", "--run-dir", str(tmp_path / "whole")])
    command.main([*words, "--total-steps", "96", "--run-dir", str(tmp_path / "parts")])
    command.main(["--resume", str(tmp_path / "parts"), "--total-steps", "192"])
    states = []
    for name in ("whole", "parts"):
        newest = checkpoints.latest(tmp_path / name / "checkpoints")
        assert newest is not None
        states.append(checkpoints.load(newest)["members"][0]["learner"])
    assert states[0]["steps"] == states[1]["steps"]
    for name, tensor in states[0]["agent"].items():
        assert torch.equal(tensor, states[1]["agent"][name]), name
