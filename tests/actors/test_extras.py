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


def test_what_boxworlds_critic_is_told() -> None:
    """On a path a, then b (in hand), then the gem; one distractor is opened by b."""
    wall, floor = "#" * 14, "#            #"
    board = [wall, floor, "# bA  *B  cB #", "#   .        #", *[floor] * 9, wall]
    locks = {"solution_locks": [(2, 3), (2, 7)], "distractor_locks": [(2, 11)]}
    batch = factory().make_batch(num_envs=2)
    batch.reset(seed=1)
    batch.place_level(0, {"board": board, **locks})
    batch.place_level(1, {"board": ["b" + board[0][1:], *board[1:]], **locks})
    first, second = batch.privileged().tolist()
    assert first == [2, -1, -1, 0, 0, 0]  # the lock of a, at (2, 3), comes first
    assert second == [2, -1, -1, 0, 1, 1]  # b opens the second lock, and the distractor
    batch.place_level(
        1,
        {
            "board": ["b" + board[0][1:], board[1], "#     *B  cB #", *board[3:]],
            **{"solution_locks": [(2, 7)], "distractor_locks": [(2, 11)]},
        },
    )
    assert batch.privileged()[1].tolist() == [1, -1, 3, 1, 1, 1]


def test_the_next_lock_of_a_new_level_is_the_first_of_its_path() -> None:
    batch = factory(env_args={}).make_batch(num_envs=200)
    batch.reset(seed=3)
    state, told = batch.state, batch.privileged()
    for i in range(200):
        ((row, col),) = np.argwhere(state.board[i] == 24 + int(state.colors[i, 0])).tolist()
        expected = [state.path_length[i], row - state.row[i], col - state.col[i], 0, 0, 0]
        assert told[i].tolist() == expected


@pytest.mark.parametrize("env", ["players:Told", "boxworld", "t-maze"])
def test_the_policy_reads_nothing_of_it(env: str) -> None:
    """Logits stay without it; the value of a privileged critic does not."""
    agent = AgentConfig(core="gru", core_args={"hidden_size": 4}, critic="privileged")
    made = factory(env=env, env_args={}, agent=agent)
    actor = made.make_actor(0)
    unroll = actor.unroll()
    actor.agent.observe(unroll.env)
    other = unroll.env._replace(extras=None)
    if isinstance(other.observation, dict):
        read = {"vector"}
        other = other._replace(observation={key: other.observation[key] for key in read})
    one, two = (actor.agent.unroll(env, unroll.agent.action, unroll.initial_state) for env in (unroll.env, other))
    torch.testing.assert_close(one.logits, two.logits)
    assert not torch.equal(one.value, two.value)


def test_an_environment_without_privileged_information_is_refused() -> None:
    made = factory(env="CartPole-v1", env_args={}, agent=AgentConfig(core="gru", critic="privileged"))
    with pytest.raises(
        ValueError, match="critic is 'privileged', and CartPole-v1 has no privileged information; allow"
    ):
        made.make_agent(made.make_batch())


@pytest.mark.parametrize("env", ["boxworld", "t-maze"])
def test_novelty_is_1_at_cells_or_observations_that_are_new_in_the_episode(env: str) -> None:
    """At every step but the first; in an environment with a map at new cells, whatever is in sight there."""
    args = {"path_lengths": 1, "num_distractors": 0, "max_steps": 20} if env == "boxworld" else {"limbo_time": 5}
    made = factory(env=env, env_args=args, unroll_length=1, novelty=True)
    actor = made.make_actor(0)
    visited: list[set[object]] = [set() for _ in range(3)]
    over, counts = [True] * 3, [0, 0]
    for step in range(120):
        if step == 60:  # another actor continues from a saved state
            saved, actor = actor.save(), made.make_actor(0)
            actor.restore(saved)
        state = actor.batch.state
        cells = [(int(state.row[i]), int(state.col[i])) for i in range(3)] if env == "boxworld" else []
        unroll = actor.unroll()
        assert unroll.env.extras is not None
        for i in range(3):
            key = cells[i] if cells else unroll.env.observation[0, i].numpy().tobytes()
            expected = not over[i] and key not in visited[i]
            visited[i] = {key} if over[i] else visited[i] | {key}
            assert float(unroll.env.extras["novelty"][0, i]) == expected
            counts[expected] += 1
        over = (unroll.env.terminated | unroll.env.truncated)[0].tolist()
    assert min(counts) > 20
