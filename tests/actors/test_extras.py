"""Extras: values in unrolls that losses read in addition to observations."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engram.actors.actor import Actor
from engram.actors.factory import ActorFactory
from engram.actors.unroll import Unroll
from engram.agents.config import AgentConfig


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


MAPS = {
    "boxworld": {"path_lengths": 2, "num_distractors": 2, "max_steps": 30},
    "mini-pacman": {"reflect": True, "frame_cap": 30},
}


def slow_window(board: np.ndarray, row: int, col: int) -> dict[tuple[int, int], int]:
    """Codes of the cells in sight by place; boards have a rim of one cell."""
    cells = {}
    for r in range(row - 2, row + 3):
        for c in range(col - 2, col + 3):
            if 0 <= r < board.shape[0] - 2 and 0 <= c < board.shape[1] - 2:
                cells[r, c] = int(board[r + 1, c + 1])
    return cells


def boxworld_cells(batch: Any, i: int) -> tuple[dict[tuple[int, int], tuple[int, ...]], tuple[int, int]]:
    state = batch.state
    place = int(state.row[i]) - 1, int(state.col[i]) - 1
    shown = {}
    for cell, code in slow_window(state.board[i], *place).items():
        # 0 border, 1 floor, 2 gem, from 4 on 20 keys, 20 locks and 20 locks of distractors
        kind = {0: 1, 1: 2, 2: 3}.get(code, 4 if code < 24 else 5)
        shown[cell] = (kind, 1 + (code - 4) % 20 if code >= 4 else 0)
    return shown, place


def pacman_cells(batch: Any, i: int) -> tuple[dict[tuple[int, int], tuple[int, ...]], tuple[int, int]]:
    """As on the agent's side of the mirror."""
    state, flips = batch.state, int(batch.state.reflection[i])
    board = state.board[i].reshape(17, 21).astype(int)
    for place in state.pills[i, : state.num_pills[i]].tolist():
        board[place // 21, place % 21] = 3
    row, col = int(state.pacman[i]) // 21 - 1, int(state.pacman[i]) % 21 - 1
    if flips & 1:
        board, col = board[:, ::-1], 18 - col
    if flips & 2:
        board, row = board[::-1], 14 - row
    return {cell: ({0: 2, 1: 3, 2: 1, 3: 4}[code],) for cell, code in slow_window(board, row, col).items()}, (row, col)


@pytest.mark.parametrize(("env", "cells"), [("boxworld", boxworld_cells), ("mini-pacman", pacman_cells)])
def test_maps_are_what_was_seen_in_the_episode_around_the_agent(env: str, cells: Any) -> None:
    agent = AgentConfig(core="lstm", core_args={"hidden_size": 4}, predict="map", prediction_size=4)
    made = factory(env=env, env_args=MAPS[env], agent=agent, num_envs=4, unroll_length=1)
    actor, saved = made.make_actor(0), None
    seen: list[dict[tuple[int, int], tuple[int, ...]]] = [{} for _ in range(4)]
    over = np.ones(4, bool)
    moved = 0
    for step in range(80):
        places = []
        for i in range(4):
            now, place = cells(actor.batch, i)
            seen[i] = now if over[i] else seen[i] | now
            places.append(place)
        if step == 40:  # another actor continues from a saved state
            saved, actor = actor.save(), made.make_actor(0)
            actor.restore(saved)
        unroll = actor.unroll()
        found = unroll.env.extras["map"][0].numpy()  # pyright: ignore
        for i, (row, col) in enumerate(places):
            expected = np.zeros_like(found[i])
            for (r, c), kinds in seen[i].items():
                if abs(r - row) <= 6 and abs(c - col) <= 6:
                    expected[r - row + 6, c - col + 6] = kinds
            np.testing.assert_array_equal(found[i], expected)
            moved += len(seen[i]) > 25
        over = (unroll.env.terminated | unroll.env.truncated)[0].numpy()
    assert moved > 40, "agents must see more than their first window"


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


@pytest.mark.parametrize("told", [{"critic": "privileged"}, {"predict": "map", "prediction_size": 4}], ids=repr)
@pytest.mark.parametrize("env", ["players:Told", "boxworld", "t-maze"])
def test_the_policy_reads_nothing_of_it(env: str, told: dict[str, Any]) -> None:
    """Logits stay without it; the value of a privileged critic does not. A loss of the map trains the core."""
    agent = AgentConfig(core="gru", core_args={"hidden_size": 4}, **told)
    made = factory(env=env, env_args={}, agent=agent)
    if env == "t-maze" and "predict" in told:
        with pytest.raises(
            ValueError, match="predict is 'map', but t-maze has no map; allowed: observation, reward, or"
        ):
            made.make_agent(made.make_batch())
        return
    actor = made.make_actor(0)
    unroll = actor.unroll()
    actor.agent.observe(unroll.env)
    other = unroll.env._replace(extras=None)
    if isinstance(other.observation, dict):
        read = {"privileged", "map", "vector"} - {"map" if "predict" in told else "privileged"}
        other = other._replace(observation={key: other.observation[key] for key in read})
    one, two = (actor.agent.unroll(env, unroll.agent.action, unroll.initial_state) for env in (unroll.env, other))
    torch.testing.assert_close(one.logits, two.logits)
    assert torch.equal(one.value, two.value) == ("predict" in told)
    if "predict" in told:
        assert one.prediction is not None
        assert two.prediction is None
        one.prediction.sum().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in actor.agent.core.parameters())


def test_an_environment_without_privileged_information_is_refused() -> None:
    made = factory(env="CartPole-v1", env_args={}, agent=AgentConfig(core="gru", critic="privileged"))
    with pytest.raises(
        ValueError, match="critic is 'privileged', but CartPole-v1 has no privileged information; allow"
    ):
        made.make_agent(made.make_batch())


def test_a_map_without_a_prediction_size() -> None:
    with pytest.raises(ValueError, match="prediction_size is 0; allowed with predict 'map': at least 1"):
        AgentConfig(predict="map")


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
