"""Which levels are played again, against slow loops and the formulas of the paper."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from engram.actors.actor import Actor
from engram.actors.levels import LevelsConfig, Replay
from engram.actors.unroll import Unroll
from engram.envs.registration import make_batch
from engram.launch.config.run_flags import parse_run
from pools import FACTORY

SHORT = replace(FACTORY, env_args={"max_steps": 3, "view": "full"}, discount=0.9)
AGAIN = replace(SHORT, levels=LevelsConfig(level_replay=0.6, level_replay_size=8))


def stepped(factory, steps: int, unroll_length: int = 5) -> tuple[Actor, list[Unroll]]:
    """An actor, always with the same weights, and its first unrolls."""
    torch.manual_seed(0)
    actor = replace(factory, unroll_length=unroll_length).make_actor(0)
    return actor, [actor.unroll() for _ in range(steps // unroll_length)]


def episodes(unrolls: list[Unroll], env: int) -> Iterator[tuple[bytes, list[float], list[float], bool]]:
    """Whole episodes of an environment: first observation, rewards and values of its steps, whether it was terminal."""
    steps = [(unroll, t) for unroll in unrolls for t in range(len(unroll.agent.value))]
    rewards, values, first = [], [], b""
    for unroll, t in steps:
        if not values:
            first = unroll.env.observation[t, env].numpy().tobytes()
        rewards.append(float(unroll.env.reward[t, env]))
        values.append(float(unroll.agent.value[t, env]))
        terminated = bool(unroll.env.terminated[t, env])
        if terminated or unroll.env.truncated[t, env]:
            yield first, rewards, values, terminated
            rewards, values = [], []


def score(rewards: list[float], values: list[float], terminated: bool, discount: float, clip: float) -> float:
    """mean_t |r_{t+1} + gamma V_{t+1} - V_t|, r clipped."""
    rewards = [max(-clip, min(clip, each)) for each in rewards]
    errors = []
    for t in range(len(values) - 1):
        bootstrap = 0.0 if terminated and t + 2 == len(values) else values[t + 1]
        errors.append(abs(rewards[t + 1] + discount * bootstrap - values[t]))
    return sum(errors) / len(errors)


@pytest.mark.parametrize("clip", [0.0, 0.25])
def test_scores_are_the_mean_absolute_value_errors(clip: float) -> None:
    levels = LevelsConfig(level_replay=1e-9, level_replay_size=400)
    factory = replace(AGAIN, levels=levels, env_args={"max_steps": 30}, reward_clip=clip)
    actor, unrolls = stepped(factory, 320, 40)
    assert actor._replay is not None
    expected = [
        score(rewards, values, terminated, 0.9, clip or 1e9)
        for env in range(4)
        for _, rewards, values, terminated in list(episodes(unrolls, env))[1:]
    ]
    stored = actor._replay.scores[actor._replay.begun >= 0]
    assert any(terminated for env in range(4) for *_, terminated in episodes(unrolls, env)), "both kinds of ends"
    assert sorted(stored) == pytest.approx(sorted(expected), rel=1e-4)


@pytest.mark.integration
def test_a_level_is_played_again_and_new_ones_are_those_without_replay() -> None:
    _, plain = stepped(SHORT, 200)
    _, given = stepped(AGAIN, 200)
    repeated = 0
    for env in range(4):
        new = [first for first, *_ in episodes(plain, env)]
        assert len(set(new)) == len(new)
        seen = list(dict.fromkeys(first for first, *_ in episodes(given, env)))
        own = [first for first in seen if first in new]
        assert own == new[: len(own)], "the levels of its own stream, in their order, none left out"
        assert 5 < len(own) < 0.7 * len(new)
        repeated += len(list(episodes(given, env))) - len(own)
    assert repeated > 40


def test_probabilities_are_those_of_the_paper() -> None:
    random = np.random.default_rng(0)
    replayed = Replay(LevelsConfig(level_replay=0.5, level_replay_size=6), 0.9, (1,), 2)
    replayed.scores[:] = random.random(6)
    replayed.begun[:] = [9, 3, 7, 1, 8, 5]
    replayed.clock[0] = 11
    scores, begun = replayed.scores, replayed.begun
    weight = [(1 / sum(other >= each for other in scores)) ** (1 / 0.1) for each in scores]
    age = [11 - each for each in begun]
    expected = [0.9 * w / sum(weight) + 0.1 * a / sum(age) for w, a in zip(weight, age, strict=True)]
    assert replayed.probabilities() == pytest.approx(expected)


@pytest.mark.integration
def test_learnability_is_p_times_1_minus_p_of_a_levels_episodes() -> None:
    """Against counts of all episodes of each level, of agents that solve some."""
    levels = LevelsConfig(level_replay=0.6, level_replay_size=6, level_replay_score="learnability")
    args = {"max_steps": 40, "path_lengths": 1, "num_distractors": 0, "grid_size": 5}
    actor = replace(AGAIN, levels=levels, env_args=args, unroll_length=1).make_actor(0)
    replayed, field = actor._replay, actor.batch.episode_fields.index("solved")
    assert replayed is not None
    counts: dict[int, list[int]] = {}
    playing, over, several = [0] * 4, [False] * 4, 0
    for _ in range(1500):
        for i in range(4):
            if over[i] and playing[i]:
                counts.setdefault(playing[i], []).append(int(actor.batch.episode_facts(np.array([i]))[0, field]))
        unroll = actor.unroll()
        began = [i for i in range(4) if over[i]]
        stored = {int(level): k for k, level in enumerate(replayed.levels) if replayed.begun[k] >= 0}
        for i in began:
            if playing[i] not in stored:
                counts.pop(playing[i], None)  # it was pushed out, and is new if it comes again
        counts = {level: each for level, each in counts.items() if level in stored}
        for level, k in stored.items():
            p = (sum(counts[level]) + 1) / (len(counts[level]) + 2)
            assert replayed.scores[k] == pytest.approx(p * (1 - p))
            several = max(several, len(counts[level]))
        for i in began:
            playing[i] = int(replayed.playing[i])
        over = (unroll.env.terminated | unroll.env.truncated)[1].tolist()
    assert several > 3
    assert 0 < sum(map(sum, counts.values())) < sum(map(len, counts.values()))
    weight = replayed.scores / replayed.scores.sum()
    age = replayed.clock[0] - replayed.begun
    assert replayed.probabilities() == pytest.approx(0.9 * weight + 0.1 * age / age.sum())


def test_learnability_needs_solved_episodes() -> None:
    levels = replace(AGAIN.levels, level_replay_score="learnability")
    factory = replace(AGAIN, env="mini-pacman", env_args={}, levels=levels)
    with pytest.raises(
        ValueError, match="level_replay_score is 'learnability', but mini-pacman does not report 'solve"
    ):
        factory.check_levels(factory.make_batch())


def test_a_full_store_keeps_the_highest_scores_and_a_known_level_has_its_newest() -> None:
    replayed = Replay(LevelsConfig(level_replay=0.5, level_replay_size=3), 0.9, (1,), 1)
    for level, each in ((1, 0.5), (2, 0.2), (3, 0.9), (4, 0.1), (5, 0.3), (3, 0.05)):
        replayed._store(np.uint64(level), each)
    assert dict(zip(replayed.levels.tolist(), replayed.scores.tolist(), strict=True)) == {
        1: 0.5,
        5: 0.3,
        3: 0.05,
    }


def test_the_length_of_unrolls_changes_nothing() -> None:
    (short, _), (long, _) = stepped(AGAIN, 80, 4), stepped(AGAIN, 80, 40)
    assert short._replay is not None
    assert long._replay is not None
    for a, b in zip(short._replay.save().values(), long._replay.save().values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_saved_actor_chooses_the_same_levels() -> None:
    first, _ = stepped(AGAIN, 80)
    second, _ = stepped(replace(AGAIN, resumed_at=7), 0)
    second.restore(first.save())
    for _ in range(10):
        a, b = first.unroll(), second.unroll()
        assert torch.equal(a.env.observation, b.env.observation)


@pytest.mark.parametrize(
    ("env", "parameters"), [("CartPole-v1", {}), ("pomdp-graph", {"assignment": "fixed"}), ("boxworld", {})]
)
def test_environments_that_cannot_be_told_their_level_are_refused(env: str, parameters: dict) -> None:
    factory = replace(AGAIN, env=env, env_args=parameters)
    environment = make_batch(env, 1, **parameters)
    if env == "boxworld":
        factory.check_levels(environment)
    else:
        with pytest.raises(ValueError, match=rf"level_replay is 0.6, but {env} does not accept levels"):
            factory.check_levels(environment)


def test_a_runs_actors_score_levels_by_its_clipped_rewards() -> None:
    words = ["--env", "boxworld", "--core", "gru", "--preset", "paper", "--reward-clip", "0.5"]
    assert parse_run(words).factory().reward_clip == 0.5
