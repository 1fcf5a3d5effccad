"""`rl-look --level` passes options to the first reset of a Gymnasium environment, and only options that it reads."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import engram
from engram.base.errors import EngramError
from engram.envs.foreign import environment_maker
from engram.launch.look.command import LookConfig, first_level, run
from engram.launch.run.trained import make_actor
from engram.launch.train import command as train


class Levels(gymnasium.Env):
    """Shows the number of its level, which `options` may choose; only one object may exist at a time."""

    observation_space = spaces.Box(-1, 99, (1,), np.float32)
    action_space = spaces.Discrete(2)
    open = 0

    def __init__(self, read: str = "get") -> None:
        self.read = read
        assert Levels.open == 0, "one at a time"
        Levels.open += 1

    def close(self):
        Levels.open -= 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level, self.time = -1, 0
        if options and self.read == "get":
            self.level = options.get("level", -1)
        elif options and self.read == "pop":
            self.level = options.pop("level") if "level" in options else -1
        elif options and self.read == "copy":
            self.level = {"level": -1, **options}["level"]
        if self.level > 9:
            raise ValueError(f"there is no level {self.level}")
        return np.array([self.level], np.float32), {}

    def step(self, action):
        self.time += 1
        return np.array([self.level], np.float32), 1.0, self.time == 3, False, {}


class Single(gymnasium.Env):
    """CartPole without a word about options."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, True, False, {}


def poles(kind, **more):
    return kind([lambda: gymnasium.make("CartPole-v1")], **more)


@environment_maker
def same_step(num_envs: int):
    return poles(SyncVectorEnv, autoreset_mode="SameStep")


@environment_maker
def in_processes(num_envs: int):
    return poles(AsyncVectorEnv)


sys.modules["reset_options"] = sys.modules[__name__]


def factory(env, **env_args):
    made = engram.configure(env, "gru", env_args=env_args, local=True, num_actors=1, core_args={"hidden_size": 4})
    return replace(made.factory(), num_envs=1, unroll_length=12)


def first_observations(made, **level):
    index, options = first_level(made, LookConfig(run="", level=level))
    weights = made.make_agent(batch := made.make_batch()).state_dict()
    batch.close()
    actor = make_actor(
        made,
        weights,
        seed=0,
        greedy=False,
        num_envs=1,
        unroll_length=12,
        first_index=index,
        reset_options=options,
    )
    env = actor.unroll().env
    actor.close()
    starts = [0, *(np.flatnonzero(env.terminated[:, 0]) + 1)]
    return [env.observation[t, 0].numpy() for t in starts if t < len(env.observation)]


@pytest.mark.parametrize("read", ["get", "pop", "copy"])
def test_the_first_episode_has_the_level_and_later_ones_do_not(read):
    first, second, *_ = first_observations(factory(Levels, read=read), level=7)
    assert (first.item(), second.item()) == (7, -1)


@pytest.mark.parametrize("env", ["CartPole-v1", "reset_options:same_step", "reset_options:in_processes"])
def test_vector_environments_pass_options_to_the_first_reset_too(env):
    first, *later = first_observations(factory(env), low=0.4, high=0.41)
    assert (np.abs(first - 0.405) <= 0.0051).all()
    assert all((np.abs(observation) <= 0.05).all() for observation in later)


@pytest.mark.parametrize(
    ("env", "level", "said"),
    [
        ("CartPole-v1", {"hight": 1}, "CartPole-v1.reset reads no option 'hight'; did you mean: high?"),
        ("CartPole-v1", {"level": 3}, "CartPole-v1.reset reads no option 'level'; there are: "),
        (Levels, {"level": 12}, r"\.reset with options {'level': 12} raised ValueError: there is no level 12$"),
        (Single, {"level": 3}, r"Single\.reset reads no option 'level'; there is none$"),
    ],
)
def test_other_options_are_refused_in_one_line(env, level, said):
    with pytest.raises(EngramError, match=said) as problem:
        first_level(factory(env), LookConfig(run="", level=level))
    assert "\n" not in str(problem.value)
    assert Levels.open == 0


def test_an_environment_without_facts_is_refused_before_thousands_are_made(monkeypatch):
    from engram.actors.factory import ActorFactory

    made, sizes = factory("CartPole-v1"), []
    whole = ActorFactory.make_batch
    monkeypatch.setattr(
        ActorFactory, "make_batch", lambda self, *a, **k: sizes.append(k["num_envs"]) or whole(self, *a, **k)
    )
    with pytest.raises(EngramError):
        first_level(made, LookConfig(run="", level={"goal": 1}))
    assert sizes == [1]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, html = tmp_path / "run", tmp_path / "page.html"
    words = ["--env", "CartPole-v1", "--core", "gru", "--core-args", "hidden_size=4", "--local", "--total-steps", "40"]
    words += ["--envs-per-actor", "2", "--envs-per-update", "2", "--unroll-length", "10", "--run-dir", str(folder)]
    assert train.main(words) == 0
    with pytest.raises(SystemExit) as stop:
        run([str(folder), "--html", str(html), "--level", "low=0.04", "high=0.05"])
    assert stop.value.code == 0
    assert json.dumps("reset with low=0.04 high=0.05") in html.read_text()
