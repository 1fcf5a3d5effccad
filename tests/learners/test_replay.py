"""Replay: what a batch is made of, what counts, what a checkpoint contains."""

import pytest
import torch

from engram.actors.actor import Actor
from engram.actors.factory import ActorFactory
from engram.actors.packed import tensors
from engram.actors.unroll import Unroll, some_environments
from engram.agents.agent import Agent
from engram.agents.config import AgentConfig
from engram.launch.config.run_config import RunConfig
from engram.learners.batches import BURN_IN
from engram.learners.checkpoints import pack, unpack
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner
from engram.learners.replay import Replay

ENVS, STEPS = 4, 6


def make() -> tuple[Actor, Agent]:
    factory = ActorFactory(
        env="popgym-repeat-first",
        agent=AgentConfig(core="gru", core_args={"hidden_size": 8}),
        num_envs=ENVS,
        unroll_length=STEPS,
        seed=2,
    )
    torch.manual_seed(0)
    actor = factory.make_actor(0)
    return actor, factory.make_agent(actor.batch)


def same(one: Unroll, other: Unroll) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))


def test_a_batch_is_the_fresh_unrolls_followed_by_older_ones() -> None:
    actor, _ = make()
    unrolls = [actor.unroll() for _ in range(4)]
    replay, config = Replay(), LearnerConfig(replay_ratio=0.5, replay_size=2 * ENVS)
    assert same(replay.mix(unrolls[0], config, 0), unrolls[0])
    for number in (1, 2):
        mixed = replay.mix(unrolls[number], config, number)
        assert len(mixed.weights_version) == ENVS + ENVS // 2
        assert same(some_environments(mixed, slice(0, ENVS)), unrolls[number])
        assert torch.equal(mixed.episodes, unrolls[number].episodes)
        for each in range(ENVS, ENVS + ENVS // 2):
            old = some_environments(mixed, torch.tensor([each]))
            stored = [some_environments(u, torch.tensor([b])) for u in unrolls[:number] for b in range(ENVS)]
            assert any(same(old, one) for one in stored)
    assert len(replay) == 2 * ENVS  # the first batch has left
    mixed = replay.mix(unrolls[3], config, 3)
    oldest = [some_environments(unrolls[0], torch.tensor([b])) for b in range(ENVS)]
    tail = [some_environments(mixed, torch.tensor([each])) for each in range(ENVS, ENVS + ENVS // 2)]
    assert not any(same(old, one) for old in tail for one in oldest)


def test_an_update_learns_from_the_mixed_batch_and_counts_fresh_steps_only() -> None:
    actor, agent = make()
    first, second = actor.unroll(), actor.unroll()
    settings = {"lr_schedule": "constant", "replay_size": ENVS}
    learner = Learner(agent, LearnerConfig(replay_ratio=1.0, **settings), 1000)  # type: ignore[arg-type]
    learner.step(first)
    before = learner.steps
    state = learner.state_dict()
    state = state | {"agent": {k: v.clone() for k, v in state["agent"].items()}}
    plain = Learner(make()[1], LearnerConfig(**settings), 1000)  # type: ignore[arg-type]
    plain.load_state_dict(state)
    mixed = Replay()
    mixed.load_state_dict(state["replay"])
    batch = mixed.mix(second, learner.config, learner.updates)
    assert len(batch.weights_version) == 2 * ENVS
    learner.step(second)
    plain.step(batch)
    for ours, theirs in zip(learner.agent.parameters(), plain.agent.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    fresh = int((~(second.env.terminated | second.env.truncated)[:-1]).sum())
    assert learner.steps - before == fresh
    assert plain.steps - before > fresh


def test_a_resumed_learner_replays_what_the_other_one_would_have() -> None:
    actor, agent = make()
    unrolls = [actor.unroll() for _ in range(3)]
    config = LearnerConfig(replay_ratio=1.0)
    going = Learner(agent, config, 1000)
    for unroll in unrolls[:2]:
        going.step(unroll)
    resumed = Learner(make()[1], config, 1000)
    resumed.load_state_dict(unpack(*pack(going.state_dict())))
    assert len(resumed.state_dict()["replay"]) == 2
    going.step(unrolls[2])
    resumed.step(unrolls[2])
    for ours, theirs in zip(going.agent.parameters(), resumed.agent.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_weights_of_another_learner_replay_no_unrolls_of_the_former_ones() -> None:
    """Their recurrent states belong to a different network."""
    actor, agent = make()
    first, second = actor.unroll(), actor.unroll()
    config = LearnerConfig(replay_ratio=1.0)
    loser, winner, fresh = (Learner(each, config, 1000) for each in (agent, make()[1], make()[1]))
    loser.step(first)
    winner.step(second)
    for learner in (loser, fresh):
        learner.take_over(winner.agent.state_dict(), winner.optimizer.state_dict())
        learner.updates = learner.steps = 0
        learner.step(second)
    for ours, theirs in zip(loser.agent.parameters(), fresh.agent.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_steps_of_a_burn_in_are_in_no_loss() -> None:
    actor, agent = make()
    first, second = actor.unroll(), actor.unroll()
    config = LearnerConfig(replay_ratio=1.0, replay_burn_in=2)

    def update(old: Unroll) -> tuple[torch.Tensor, Unroll]:
        learner = Learner(make()[1], config, 1000)
        learner.agent.load_state_dict(agent.state_dict())
        replay = Replay()
        replay.mix(old, config, 0)
        learner.replay = replay
        learner.step(second)
        mixed = Replay()
        mixed.mix(old, config, 0)
        parameters = torch.cat([each.detach().flatten() for each in learner.agent.parameters()])
        return parameters, mixed.mix(second, config, 0)

    def changed(steps: slice) -> Unroll:
        logits = first.agent.logits.clone()
        logits[steps] = logits[steps].roll(1, -1) + 1.0 * torch.arange(logits.shape[-1])
        return first._replace(agent=first.agent._replace(logits=logits))

    same_weights, mixed = update(first)
    assert mixed.env.extras is not None
    marks = mixed.env.extras[BURN_IN]
    assert not marks[:, :ENVS].any()
    assert marks[:2, ENVS:].all()
    assert not marks[2:, ENVS:].any()
    assert torch.equal(update(changed(slice(0, 2)))[0], same_weights)
    assert not torch.equal(update(changed(slice(2, 3)))[0], same_weights)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_algorithms_of_fresh_unrolls_refuse_replay(algorithm: str) -> None:
    with pytest.raises(ValueError, match=rf"replay_ratio is 0\.5; allowed with algorithm {algorithm}.*: 0"):
        LearnerConfig(algorithm=algorithm, replay_ratio=0.5)
    with pytest.raises(ValueError, match=r"num_learners is 2; allowed with --replay-ratio: 1"):
        RunConfig(env="t-maze", num_learners=2, num_actors=2, learner=LearnerConfig(replay_ratio=1.0))
