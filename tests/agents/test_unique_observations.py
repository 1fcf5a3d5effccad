"""Features of repeated observations, computed once, against the torso requested for every one."""

import pytest
import torch

from engram.actors.factory import ActorFactory
from engram.agents import unique_observations
from engram.agents.config import AgentConfig, TorsoConfig
from engram.agents.specs import ArraySpec
from engram.agents.torsos import make_torso
from engram.agents.unique_observations import TorsoCache, once_each
from engram.agents.values import Weights, flatten


class Counted(torch.nn.Module):
    """A torso that notes how many observations it is requested for."""

    def __init__(self, spec, **config):
        super().__init__()
        torch.manual_seed(0)
        self.torso = make_torso(spec, TorsoConfig(embedding_size=6, **config))
        self.requested = []

    def forward(self, observation):
        self.requested.append(len(next(iter(observation.values())) if isinstance(observation, dict) else observation))
        return self.torso(observation)


def pictures(count, kinds):
    """uint8 [count, 4, 3, 2], of so many kinds."""
    torch.manual_seed(1)
    each = torch.randint(0, 255, (kinds, 4, 3, 2), dtype=torch.uint8)
    return each[torch.cat([torch.arange(kinds), torch.randint(0, kinds, (count - kinds,))])]


def counted():
    return Counted(ArraySpec((4, 3, 2), 1 / 255))


def test_each_kind_is_computed_once_with_the_same_values_and_gradients():
    torso, observation = counted(), pictures(100, 7)
    weight = torch.randn(100, 6)
    found = {}
    for name, features in (("once", once_each(torso, observation)), ("all", torso(observation))):
        gradients = torch.autograd.grad((features * weight).sum(), list(torso.parameters()))
        found[name] = [features, *gradients]
    assert torso.requested == [7, 100]
    for ours, theirs in zip(found["once"], found["all"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_of_a_dict_all_parts_must_be_equal():
    torso = Counted({"a": ArraySpec((3,), 1.0), "b": ArraySpec((2,), 1.0)})
    a, b = torch.randn(2, 3)[torch.arange(80) % 2], torch.randn(3, 2)[torch.arange(80) % 3]
    torch.testing.assert_close(once_each(torso, {"a": a, "b": b}), torso.torso({"a": a, "b": b}))
    assert torso.requested == [6]


def test_observations_with_the_same_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(unique_observations, "_factors", lambda size: torch.zeros(size, dtype=torch.uint32).numpy())
    torso, observation = counted(), pictures(100, 7)
    torch.testing.assert_close(once_each(torso, observation), torso.torso(observation))
    torch.testing.assert_close(TorsoCache(torso)(observation), torso.torso(observation))
    assert torso.requested == [7, 7]


def hooked(torso, observation):
    torso.register_forward_hook(lambda *_: None)
    return observation


@pytest.mark.parametrize(
    "change",
    [
        hooked,
        lambda torso, observation: observation.float().requires_grad_(),
        lambda torso, observation: observation[: unique_observations.FEW - 1],
        lambda torso, observation: pictures(100, 90),
    ],
    ids=["hooks", "gradients", "few", "distinct"],
)
def test_the_torso_gets_everything_where_that_is_asked_or_better(change):
    torso = counted()
    observation = change(torso, pictures(100, 7))
    assert torch.equal(once_each(torso, observation), torso.torso(observation))
    assert torso.requested == [len(observation)]


def test_while_acting_only_what_is_new_is_computed():
    torso, observation = counted(), pictures(40, 5)
    cache = TorsoCache(torso)
    for part in observation.split(4):
        torch.testing.assert_close(cache(part), torso.torso(part))
    assert sum(torso.requested) == 5
    with torch.no_grad():
        torso.torso.linear.weight.neg_()
    cache.forget()
    torch.testing.assert_close(cache(observation), torso.torso(observation))
    assert sum(torso.requested) == 10


def test_room_for_few_observations_is_enough(monkeypatch):
    monkeypatch.setattr(unique_observations, "MOST_CACHED", 8)
    torso, observation = counted(), pictures(60, 20)
    cache = TorsoCache(torso)
    for part in (*observation.split(6), observation[:9]):
        torch.testing.assert_close(cache(part), torso.torso(part))
    assert torso.requested[-1] == 9


def test_where_all_is_new_nothing_is_kept():
    torso = counted()
    cache = TorsoCache(torso)
    for part in pictures(40 * unique_observations.FEW, 40 * unique_observations.FEW).split(unique_observations.FEW):
        cache(part)
    requested = cache._requested
    assert requested < 12 * unique_observations.FEW
    assert sum(torso.requested) == 40 * unique_observations.FEW


def test_an_actor_with_new_weights_has_new_features():
    factory = ActorFactory(
        env="t-maze",
        env_args={"difficulty": 0},
        agent=AgentConfig(core="lstm", core_args={"hidden_size": 8}, torso=TorsoConfig(embedding_size=8)),
        num_envs=4,
        unroll_length=10,
        seed=2,
    )
    actor = factory.make_actor(0)
    for version in range(2):
        torch.manual_seed(version)
        agent = factory.make_agent(actor.batch)
        unroll = actor.unroll(Weights(version, 0, flatten(agent), 0))
        out = agent.unroll(unroll.env, unroll.agent.action, unroll.initial_state)
        torch.testing.assert_close(unroll.agent.logits, out.logits[:-1], rtol=1e-4, atol=1e-5)
