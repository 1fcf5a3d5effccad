"""What unrolls carry for losses besides observations."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engram.actors.actor import Actor
from engram.actors.factory import ActorFactory
from engram.actors.unroll import Unroll
from engram.agents.agent import AgentConfig


def factory(**settings: object) -> ActorFactory:
    made = ActorFactory(
        env="boxworld",
        env_args={"path_lengths": 1, "num_distractors": 0, "max_steps": 8},
        agent=AgentConfig(core="lstm", core_args={"hidden_size": 4}),
        num_envs=3,
        unroll_length=12,
        seed=3,
    )
    return replace(made, **settings)


def joined(actor: Actor, count: int) -> tuple[Unroll, ...]:
    return tuple(actor.unroll() for _ in range(count))


def test_an_unroll_carries_the_players_actions_in_the_students_states() -> None:
    """At every step, the last one included, from the observations of the episode so far."""
    sums, over = np.zeros(3, np.int64), np.ones(3, bool)
    ends = 0
    for unroll in joined(factory(imitate="players:Summing").make_actor(0), 3):
        assert unroll.env.extras is not None
        for t in range(12):
            sums = np.where(over, 0, sums) + unroll.env.observation[t].numpy().astype(np.int64).sum((1, 2, 3))
            assert unroll.env.extras["player"][t].tolist() == (sums % 4).tolist()
            over = (unroll.env.terminated | unroll.env.truncated)[t].numpy()
            ends += over.sum()
    assert ends > 5, "the test must cross episode boundaries"


def test_a_restored_actor_and_player_continue_exactly() -> None:
    one, other = (factory(imitate="players:Summing").make_actor(0) for _ in range(2))
    other.agent.load_state_dict(one.agent.state_dict())
    one.unroll()
    other.restore(one.save())
    for ours, theirs in zip(joined(one, 2), joined(other, 2), strict=True):
        assert torch.equal(ours.env.observation, theirs.env.observation)
        assert torch.equal(ours.env.extras["player"], theirs.env.extras["player"])  # pyright: ignore


@pytest.mark.parametrize(
    ("player", "message"),
    [
        ("players:Nobody", "cannot load player 'players:Nobody': module 'players' has no attribute 'Nobody'"),
        ("nowhere:Player", "cannot load player 'nowhere:Player': No module named 'nowhere'"),
        ("builtins:len", r"cannot make player 'builtins:len': __init__"),
        ("builtins:repr", r"player 'builtins:repr' has no method act\(observation, first\)"),
    ],
)
def test_players_that_cannot_be_made(player: str, message: str) -> None:
    made = factory(imitate=player)
    with pytest.raises((ValueError, TypeError), match=message):
        made.check_levels(made.make_batch())


def test_a_player_that_returns_too_few_actions() -> None:
    with pytest.raises(ValueError, match=r"player 'players:TooFew' returned actions \(1,\); expected \(3,\)"):
        factory(imitate="players:TooFew").make_actor(0)
