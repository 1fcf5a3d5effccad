"""The hand-over: what an actor stores is what the learner's pass over the same rows needs and finds."""

import numpy as np
import pytest
import torch

from engram.actors.actor import Actor
from engram.actors.factory import ActorFactory
from engram.actors.unroll import Unroll, join, some_environments
from engram.agents.agent import Agent
from engram.agents.config import AgentConfig
from engram.agents.cores.core import state_leaves
from engram.agents.values import Weights, flatten, load, map_leaves

CORES = ["rmc", "lstm", "feedforward"]


def make_factory(core: str, num_envs: int = 5, length: int = 30, **agent: object) -> ActorFactory:
    """Short levels, so that several episodes end inside an unroll, some by the gem and some by the step limit."""
    return ActorFactory(
        env="boxworld",
        env_args={"path_lengths": 1, "num_distractors": 0, "max_steps": 8},
        agent=AgentConfig(core=core, **agent),  # type: ignore[arg-type]
        num_envs=num_envs,
        unroll_length=length,
        seed=3,
    )


def learner_pass(agent: Agent, unroll: Unroll) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        out = agent.unroll(unroll.env, unroll.agent.action, unroll.initial_state)
    return out.logits, out.value


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    "inputs", [{}, {"previous_action": True, "previous_reward": True, "time_horizon": 9}], ids=["plain", "history"]
)
def test_learner_sees_what_the_actor_saw(core: str, inputs: dict[str, object]) -> None:
    actor = make_factory(core, **inputs).make_actor(0)
    ends = 0
    for _ in range(3):
        unroll = actor.unroll()
        logits, value = learner_pass(actor.agent, unroll)
        torch.testing.assert_close(logits[:-1], unroll.agent.logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(value[:-1], unroll.agent.value, rtol=1e-4, atol=1e-5)
        ends += int((unroll.env.terminated | unroll.env.truncated).sum())
    assert ends > 20, "the test must cross episode boundaries"


def test_rows_and_states_hand_over_between_unrolls() -> None:
    actor = make_factory("lstm", previous_action=True).make_actor(0)
    before = actor.unroll()
    after = actor.unroll()
    for old, new in zip(
        (before.env.observation, *before.env[1:4]), (after.env.observation, *after.env[1:4]), strict=True
    ):
        assert torch.equal(old[-1], new[0])
    # Run the old unroll by hand: its last state is the new unroll's first.
    state = before.initial_state
    for t in range(actor.unroll_length):
        row = map_leaves(lambda leaf, t=t: leaf[t], before.env)
        output, state = actor.agent.step(row, state)
        state = state._replace(previous_action=before.agent.action[t])
        torch.testing.assert_close(output.logits, before.agent.logits[t], rtol=1e-4, atol=1e-5)
    for mine, stored in zip(state_leaves(state), state_leaves(after.initial_state), strict=True):
        torch.testing.assert_close(mine, stored, rtol=1e-4, atol=1e-5)


def test_stored_state_does_not_change_when_the_actor_goes_on() -> None:
    actor = make_factory("lstm").make_actor(0)
    actor.unroll()
    unroll = actor.unroll()
    copies = [leaf.clone() for leaf in state_leaves(unroll.initial_state)]
    observation = unroll.env.observation.clone()
    actor.unroll()
    assert all(torch.equal(a, b) for a, b in zip(copies, state_leaves(unroll.initial_state), strict=True))
    assert torch.equal(observation, unroll.env.observation)


def test_every_unroll_carries_memory_over_from_the_last() -> None:
    actor = make_factory("lstm").make_actor(0)
    assert not any(leaf.any() for leaf in state_leaves(actor.unroll().initial_state.core))
    assert all(leaf.any() for leaf in state_leaves(actor.unroll().initial_state.core))


def test_episode_statistics_equal_a_count_by_hand() -> None:
    actor = make_factory("feedforward", num_envs=7, length=50).make_actor(0)
    returns, lengths = np.zeros(7), np.zeros(7, int)
    expected: list[tuple[int, float, int]] = []
    found: list[tuple[int, float, int]] = []
    for _ in range(3):
        unroll = actor.unroll()
        over = (unroll.env.terminated | unroll.env.truncated).numpy()
        for t in range(50):
            for i in range(7):
                if over[t, i]:
                    continue
                returns[i] += unroll.env.reward[t + 1, i].item()
                lengths[i] += 1
                if over[t + 1, i]:
                    expected.append((i, returns[i], lengths[i]))
                    returns[i], lengths[i] = 0, 0
        found += [(int(row[0]), float(row[1]), int(row[2])) for row in unroll.episodes]
    assert found == expected
    assert len(found) > 20
    assert max(length for _, _, length in found) == 9, "the action after the limit ends the episode"


def test_save_and_restore_continue_exactly() -> None:
    actor = make_factory("lstm").make_actor(0)
    actor.unroll()
    saved = actor.save()
    expected = actor.unroll()
    other = make_factory("lstm").make_actor(0, life=5)
    load(other.agent, flatten(actor.agent))
    other.restore(saved)
    found = other.unroll()
    assert torch.equal(found.env.observation, expected.env.observation)
    assert torch.equal(found.agent.action, expected.agent.action)
    assert torch.equal(found.agent.logits, expected.agent.logits)
    assert torch.equal(found.episodes, expected.episodes)


def test_a_restored_memory_is_where_the_agent_is() -> None:
    saved = make_factory("lstm").make_actor(0).save()
    actor = make_factory("lstm").make_actor(0)
    actor.device = torch.device("meta")  # in place of a GPU: tensors without numbers, and no others fit to them
    actor.restore(saved)
    assert {leaf.device.type for leaf in state_leaves(actor.state)} == {"meta"}


def test_the_first_state_is_that_of_the_weights_that_act() -> None:
    """MNM's is learned: that of the actor's own first weights is unused."""
    agent = AgentConfig(core="mnm-p", core_args={"hidden_size": 8, "memory_size": 4})
    factory = ActorFactory(env="boxworld", agent=agent, num_envs=2, unroll_length=3, seed=1)
    actor, learner = factory.make_actor(0), factory.make_agent(factory.make_batch())
    first = learner.initial_state(2)
    found = actor.unroll(Weights(0, 0, flatten(learner)))
    for a, b in zip(state_leaves(found.initial_state), state_leaves(first), strict=True):
        assert torch.equal(a, b)
    again = factory.make_actor(0)
    again.restore(actor.save())
    assert not all(torch.equal(a, b) for a, b in zip(state_leaves(again.state), state_leaves(first), strict=True))
    expected = actor.unroll(Weights(1, 0, flatten(learner)))
    assert torch.equal(again.unroll(Weights(1, 0, flatten(learner))).agent.logits, expected.agent.logits)


def test_levels_do_not_depend_on_how_environments_are_split() -> None:
    whole = make_factory("feedforward", num_envs=6).make_actor(0).unroll()
    halves = [make_factory("feedforward", num_envs=3).make_actor(number).unroll() for number in range(2)]
    assert torch.equal(whole.env.observation[0], torch.cat([half.env.observation[0] for half in halves]))


def test_a_replacement_draws_other_levels() -> None:
    factory = make_factory("feedforward")
    first, second = (factory.make_actor(0, life=life).unroll().env.observation[0] for life in (0, 1))
    assert not torch.equal(first, second)


def test_weights_are_loaded_and_named_in_the_unroll() -> None:
    actor = make_factory("lstm").make_actor(0)
    zeros = np.zeros_like(flatten(actor.agent))
    unroll = actor.unroll(Weights(7, 0, zeros))
    assert unroll.weights_version.tolist() == [7] * 5
    assert not unroll.agent.logits.any()


def test_flatten_and_load_round_trip_and_refuse_another_network() -> None:
    one, two = (make_factory("lstm").make_agent(make_factory("lstm").make_batch()) for _ in range(2))
    load(two, flatten(one))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    with pytest.raises(ValueError, match="weights for an agent that has"):
        load(two, flatten(one)[:-1])


def test_columns_and_join_are_inverse() -> None:
    unroll = make_factory("lstm").make_actor(0).unroll()
    again = join([some_environments(unroll, slice(0, 2)), some_environments(unroll, slice(2, 5))])
    assert torch.equal(again.env.observation, unroll.env.observation)
    assert torch.equal(again.agent.logits, unroll.agent.logits)
    assert torch.equal(again.initial_state.core.c, unroll.initial_state.core.c)
    assert torch.equal(again.episodes, unroll.episodes)


def test_actor_loads_only_new_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    actor: Actor = make_factory("feedforward").make_actor(0)
    weights = flatten(actor.agent)
    actor.load(Weights(1, 0, weights))
    actor.load(Weights(1, 0, weights + 1))
    assert np.array_equal(flatten(actor.agent), weights)
    actor.load(Weights(2, 0, weights + 1))
    assert np.array_equal(flatten(actor.agent), weights + 1)


def test_a_random_number_generator_of_another_device_is_seeded_again() -> None:
    """The state of a CUDA generator is a seed and an offset, that of a CPU's 5,056 bytes."""
    saved = make_factory("feedforward").make_actor(0).save()
    saved["generator"] = torch.zeros(16, dtype=torch.uint8)
    actor, fresh = (make_factory("feedforward").make_actor(0) for _ in range(2))
    fresh.agent.load_state_dict(actor.agent.state_dict())
    actor.restore(saved)
    assert torch.equal(actor.unroll().agent.action, fresh.unroll().agent.action)
