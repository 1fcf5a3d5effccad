"""Action masks from the environment to the loss: native and foreign environments, alone and together, restored."""

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from engram.actors.actor import Actor
from engram.actors.factory import ActorFactory
from engram.actors.local_pool import LocalPool
from engram.actors.unroll import join, some_environments
from engram.agents.config import AgentConfig
from engram.agents.specs import log_policy, log_probability
from engram.agents.values import Weights, flatten
from engram.envs.arrays import random_valid
from engram.envs.foreign import ForeignBatch
from engram.envs.foreign.vector import VectorBatch
from engram.launch.evaluate import command as evaluate
from engram.launch.train import command
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner
from engram.learners.population.vectorized import learn_together
from masked_envs import ENVIRONMENTS, Masked, MaskedChoices, MaskedDict

GRU = AgentConfig(core="gru", core_args={"hidden_size": 8}, previous_action=True)


def factory_of(env: str, **changes: Any) -> ActorFactory:
    args = {"path_lengths": 1, "num_distractors": 0, "max_steps": 6} if env.endswith("BoxWorld") else {}
    return replace(ActorFactory(env=env, env_args=args, agent=GRU, num_envs=6, unroll_length=20, seed=3), **changes)


def taken(unroll: Any, choices: tuple[int, ...]) -> torch.Tensor:
    """Whether each action taken was valid, bool [T, B, K]."""
    starts = torch.tensor([0, *np.cumsum(choices)[:-1]])
    actions = unroll.agent.action.reshape(*unroll.agent.action.shape[:2], -1)
    return unroll.env.action_mask[:-1].gather(-1, actions + starts)


@pytest.mark.parametrize("env", ENVIRONMENTS)
@pytest.mark.parametrize("greedy", [False, True], ids=["sampled", "greedy"])
def test_only_valid_actions_are_taken_and_the_learner_sees_the_actors_policy(env: str, greedy: bool):
    """The environments raise an error at an invalid action; observations are equal where masks differ."""
    actor = factory_of(env).make_actor(0)
    actor.agent.greedy = greedy
    for unroll in (actor.unroll(), actor.unroll()):
        mask, spec = unroll.env.action_mask, actor.agent.action_spec
        assert mask.shape == (21, 6, spec.num_outputs)
        assert 0.2 < mask.float().mean() < 0.9
        assert taken(unroll, spec.choices).all()
        assert torch.equal(unroll.agent.logits.isneginf(), ~mask[:-1])
        out = actor.agent.unroll(unroll.env, unroll.agent.action, unroll.initial_state)
        assert torch.equal(out.logits.isneginf(), ~mask)
        ours, theirs = (
            log_probability(spec, log_policy(spec, logits), unroll.agent.action)
            for logits in (out.logits[:-1], unroll.agent.logits)
        )
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "algorithm", ["vtrace", *(pytest.param(name, marks=pytest.mark.integration) for name in ("a2c", "ppo"))]
)
@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_updates_are_finite_and_masked_probabilities_stay_0(env: str, algorithm: str):
    factory = factory_of(env)
    actor = factory.make_actor(0)
    learner = Learner(actor.agent, LearnerConfig(algorithm=algorithm, entropy_cost=0.1), 10_000)
    before = flatten(learner.agent)
    for _ in range(3):
        metrics = learner.step(actor.unroll())
        assert all(np.isfinite(value) for value in metrics.values()), metrics
    assert learner.skipped == 0
    after = flatten(learner.agent)
    assert np.isfinite(after).all()
    assert (after != before).mean() > 0.3


def test_entropy_is_that_of_the_valid_actions():
    """A new agent with a policy head of zeros: log n of n valid actions."""
    actor = factory_of(ENVIRONMENTS[0]).make_actor(0)
    torch.nn.init.zeros_(actor.agent.policy.weight)
    torch.nn.init.zeros_(actor.agent.policy.bias)
    unroll = actor.unroll()
    valid = ~(unroll.env.terminated | unroll.env.truncated)[:-1]
    expected = unroll.env.action_mask[:-1].sum(-1).double().log()[valid].mean().item()
    found = Learner(actor.agent, LearnerConfig(), 1000).step(unroll)["policy/entropy"]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("env", [ENVIRONMENTS[2], ENVIRONMENTS[3]])
def test_members_act_and_learn_together_as_alone(env: str):
    factory = factory_of(env)
    alone, together = (LocalPool(factory.make_actor, 1, 0, together=each) for each in (False, True))
    agents = []
    for member in range(2):
        torch.manual_seed(member)
        agents.append(factory.make_agent(factory.make_batch()))
        for pool in (alone, together):
            pool.publish(Weights(1, member, flatten(agents[-1])))
    batches = []
    for member in range(2):
        one, other = together.gather(member)[0], alone.gather(member)[0]
        assert torch.equal(one.env.action_mask, other.env.action_mask)
        assert torch.equal(one.agent.action, other.agent.action)
        torch.testing.assert_close(one.agent.logits, other.agent.logits, rtol=1e-4, atol=1e-5)
        batches.append(one)
    config = LearnerConfig(optimizer="rmsprop_tf", eps=0.1, lr=0.05, lr_schedule="constant")
    ours, theirs = ([Learner(copy.deepcopy(agent), config, 10_000) for agent in agents] for _ in range(2))
    learn_together(ours, batches)
    for learner, batch, same in zip(theirs, batches, ours, strict=True):
        learner.learn(batch)
        np.testing.assert_allclose(flatten(same.agent), flatten(learner.agent), atol=1e-5)
        one, other = same.read()[-1], learner.read()[-1]
        del one["vtrace/rho_clip_rate"], other["vtrace/rho_clip_rate"]  # ratios of 1 but for rounding
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)


def test_masks_are_cut_joined_saved_and_restored_with_their_steps():
    factory = factory_of(ENVIRONMENTS[2], trust_checkpoint=True)
    actor, other = factory.make_actor(0), factory.make_actor(0)
    other.agent.load_state_dict(actor.agent.state_dict())
    first = actor.unroll()
    halves = join([some_environments(first, slice(0, 2)), some_environments(first, slice(2, None))])
    assert torch.equal(halves.env.action_mask, first.env.action_mask)
    other.restore(actor.save())
    expected, found = actor.unroll(), other.unroll()
    assert torch.equal(expected.env.action_mask[0], first.env.action_mask[-1])
    assert torch.equal(expected.env.action_mask, found.env.action_mask)
    assert torch.equal(expected.agent.action, found.agent.action)


def test_an_environment_without_masks_has_none():
    unroll = factory_of("boxworld", env_args={"path_lengths": 1, "num_distractors": 0}).make_actor(0).unroll()
    assert unroll.env.action_mask is None


def actor_of(make: Any, name: str = "mine") -> Actor:
    batch = ForeignBatch(make, 2, name=name)
    agent = factory_of(ENVIRONMENTS[0]).make_agent(batch)
    return Actor(batch, agent, unroll_length=20, seed=1)


class Late(Masked):
    """Its reset returns no mask."""

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0], {}


class Missing(Masked):
    """Its step returns no mask."""

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {}


class Short(Masked):
    def _info(self, mask: Any) -> Any:
        return mask[:3]


class Additive(Masked):
    def _info(self, mask: Any) -> Any:
        return (mask - 1.0) * 1e9


class Numbers(Masked):
    """Has a mask and real actions."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1, 1, (5,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(Masked, empty_at=3), "action_mask of mine has no valid action .environment 0.$"),
        (partial(MaskedChoices, empty_at=3), "action_mask of mine has no valid action for choice 0 .environment 0.$"),
        (Late, "mine.step returned an action_mask, mine.reset none"),
        (Missing, "mine returned info without 'action_mask' .environment 0."),
        (Short, "action_mask of mine has 3 values; expected 5"),
        (Additive, "action_mask of mine contains -1000000000.0; allowed: 0 and 1"),
        (Numbers, "mine has an action_mask and Box actions"),
    ],
)
def test_a_wrong_mask_is_an_error_that_names_the_environment(make: Any, message: str):
    with pytest.raises(ValueError, match=message):
        actor_of(make).unroll()


def test_the_check_before_a_run_takes_a_valid_action():
    for make in (Masked, MaskedChoices):
        for _ in range(20):
            ForeignBatch(make, 1, name="mine").check()


def test_random_valid_actions_are_valid_and_all_of_them():
    rng = np.random.default_rng(1)
    mask = np.tile(np.array([True, False, True, False, True]), (1000, 1))
    actions = random_valid(mask, (3, 2), rng)
    assert set(actions[:, 0]) == {0, 2}
    assert set(actions[:, 1]) == {1}


@pytest.mark.integration
def test_a_run_ends_at_once_with_one_line_that_names_the_environment(tmp_path: Any, capsys: Any):
    words = "--env masked_envs:EmptyLater --core gru --core-args hidden_size=4 --total-steps 10_000 --local".split()
    assert command.main([*words, "--run-dir", str(tmp_path / "run")]) == 1
    said = capsys.readouterr()
    assert "rl-train: action_mask of masked_envs:EmptyLater has no valid action (environment 0)" in said.err
    assert "Traceback" not in said.err + said.out


@pytest.mark.integration
def test_a_population_and_its_evaluation_take_valid_actions_only(tmp_path: Any):
    """The environments raise an error at an invalid action."""
    run = str(tmp_path / "run")
    words = f"--env {ENVIRONMENTS[2]} --core gru --core-args hidden_size=4 --total-steps 2000 --local".split()
    assert command.main([*words, "--population", "2", "--max-actor-failures", "0", "--run-dir", run]) == 0
    for greedy in ([], ["--greedy"]):
        assert evaluate.main([run, "--episodes", "20", *greedy]) == 0


@pytest.mark.parametrize("make", [Masked, MaskedDict, MaskedChoices])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_environments_take_valid_actions_only_in_every_autoreset_mode(make: Any, mode: AutoresetMode):
    """Also in the discarded steps of environments whose episode has ended; episodes end at different times."""
    batch = VectorBatch(lambda n: SyncVectorEnv([make] * n, autoreset_mode=mode), 4, name="mine")
    batch.check()
    actor = Actor(batch, factory_of(ENVIRONMENTS[0]).make_agent(batch), unroll_length=20, seed=1)
    for step in range(2):
        unroll = actor.unroll()
        over = unroll.env.terminated | unroll.env.truncated
        assert over.any()
        assert taken(unroll, actor.agent.action_spec.choices).all()
        assert 0.2 < unroll.env.action_mask[~over].float().mean() < 0.9
        if step == 0:
            batch.cut(np.array([True, False, False, True]))


@pytest.mark.integration
def test_masks_do_not_depend_on_the_number_of_worker_processes():
    args = {"env": ENVIRONMENTS[2], "num_envs": 3}
    plain, workers = factory_of(**args).make_actor(0), factory_of(**args, env_workers=2).make_actor(0)
    workers.agent.load_state_dict(plain.agent.state_dict())
    try:
        for _ in range(2):
            one, other = plain.unroll(), workers.unroll()
            assert torch.equal(one.env.action_mask, other.env.action_mask)
            assert torch.equal(one.agent.action, other.agent.action)
    finally:
        workers.batch.close()
