"""A torso that keeps the weights it begins with, while all else learns."""

import copy

import pytest
import torch

from engram.actors.factory import ActorFactory
from engram.agents.config import AgentConfig, TorsoConfig
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner
from engram.learners.population.vectorized import learn_together

ENVIRONMENTS = {"boxworld": {"path_lengths": 1, "num_distractors": 0, "max_steps": 10}, "CartPole-v1": {}}


def learners(env: str, core: str, fixed: bool, algorithm: str = "ppo") -> tuple[list[Learner], list]:
    """Two learners with the same weights, and a batch for each."""
    torch.manual_seed(1)  # few units: with some initial weights no gradient reaches the core
    torso = TorsoConfig(fixed_features=fixed, embedding_size=8, normalize_features=True)
    config = AgentConfig(core=core, torso=torso)
    factory = ActorFactory(env=env, env_args=ENVIRONMENTS[env], agent=config, num_envs=4, unroll_length=12, seed=2)
    actor = factory.make_actor(0)
    agent = factory.make_agent(actor.batch)
    both = [Learner(copy.deepcopy(agent), LearnerConfig(algorithm=algorithm), 10_000) for _ in range(2)]
    return both, [actor.unroll() for _ in range(2)]


def changed(learner: Learner, before: dict[str, torch.Tensor]) -> set[str]:
    """Parts of the network with weights that are others now."""
    parameters = dict(learner.agent.named_parameters())
    return {name.split(".")[0] for name, value in parameters.items() if not torch.equal(value, before[name])}


@pytest.mark.integration
@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize(
    ("core", "algorithm"),
    [
        ("lstm", "ppo"),
        ("lstm", "vtrace"),
        ("lstm", "a2c"),
        ("concrete", "ppo"),
        ("conv-lstm", "vtrace"),
        ("mnm-p", "a2c"),
    ],
)
@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_all_learns_but_a_fixed_torso(env: str, core: str, algorithm: str, fixed: bool) -> None:
    if env == "CartPole-v1" and core == "conv-lstm":
        pytest.skip("reads images")
    (learner, _), (batch, _) = learners(env, core, fixed, algorithm)
    before = {name: value.detach().clone() for name, value in learner.agent.named_parameters()}
    learner.learn(batch)
    everything = {"torso", "core", "policy", "value"}
    assert changed(learner, before) == everything - ({"torso"} if fixed else set())


def test_members_of_a_population_keep_theirs() -> None:
    both, batches = learners("boxworld", "concrete", fixed=True)
    before = {name: value.detach().clone() for name, value in both[0].agent.named_parameters()}
    learn_together(both, batches)
    assert all(changed(each, before) == {"core", "policy", "value"} for each in both)


def test_what_is_played_is_the_same() -> None:
    agents = [learners("boxworld", "concrete", fixed)[0][0].agent for fixed in (True, False)]
    agents[1].load_state_dict(agents[0].state_dict())
    _, (batch, _) = learners("boxworld", "concrete", fixed=True)
    answers = [each.unroll(batch.env, batch.agent.action, batch.initial_state) for each in agents]
    assert torch.equal(answers[0].logits, answers[1].logits)
