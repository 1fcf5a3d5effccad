"""Environments written in JAX give the episodes of a plain loop over their own functions."""

import sys
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import engram
from engram.envs.foreign import environment_maker
from engram.envs.randomness import streams
from engram.envs.registration import make_batch

jax = pytest.importorskip("jax", reason="pip install jax")
STEPS, NUM_ENVS, SEED = 40, 3, 5


class WalkState(NamedTuple):
    position: Any
    time: Any


class SixValues:
    """A noisy walk from a random start: terminated beyond 3, truncated after `limit` steps."""

    default_params = 0.5
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)
    episode_fields = ("time",)

    def __init__(self, limit: int = 9) -> None:
        self.limit = limit

    def reset(self, key: Any, params: float) -> Any:
        state = WalkState(jax.random.uniform(key, minval=-1, maxval=1), 0)
        return self._observation(state), state

    def step(self, key: Any, state: WalkState, action: Any, params: float) -> Any:
        position = state.position + 2.0 * action - 1 + params * jax.random.uniform(key, minval=-1, maxval=1)
        state = WalkState(position, state.time + 1)
        over = abs(position) > 3
        return self._observation(state), state, position, over, state.time == self.limit, {"time": state.time}

    def _observation(self, state: WalkState) -> Any:
        return jax.numpy.stack([state.position, state.time * 1.0])


class OneFlag(SixValues):
    """The same walk with a single `done` and `info["truncated"]`."""

    def step(self, key: Any, state: WalkState, action: Any, params: float) -> Any:
        *outputs, over, limit, info = super().step(key, state, action, params)
        return *outputs, over | limit, info | {"truncated": limit}


class FewValues(SixValues):
    def step(self, key: Any, state: WalkState, action: Any, params: float) -> Any:
        return super().step(key, state, action, params)[:4]


class Wrapped:
    """Like gymnax's wrappers: attributes of the environment are those of the wrapper."""

    def __init__(self) -> None:
        self.env = type("Own", (SixValues,), {"step_env": SixValues.step, "reset_env": SixValues.reset})()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, key: Any, params: float) -> Any:
        return self.env.reset(key, params)

    def step(self, *arguments: Any) -> Any:
        return self.env.step(*arguments)


@environment_maker
def quiet(limit: int = 9) -> Any:
    return OneFlag(limit), 0.0


def unmarked() -> Any:
    return SixValues()


def batch(maker: str = "SixValues", num_envs: int = NUM_ENVS, **options: Any) -> Any:
    return make_batch(f"jax:{__name__}:{maker}", num_envs, options.pop("first_index", 0), **options)


ACTIONS = np.random.default_rng(0).integers(2, size=(STEPS, NUM_ENVS))


@pytest.fixture(scope="module")
def walk() -> Any:
    return batch()


def played(made: Any, actions: np.ndarray = ACTIONS, cut_at: int = -1, reset: bool = True) -> list[np.ndarray]:
    """Observation, reward, terminated, truncated of all steps, [T + 1, N, ...]."""
    n = made.num_envs
    rows = made.new_observation(), np.zeros(n, np.float32), np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    if reset:
        made.reset_into(rows[0], SEED)
    found = [[row.copy() for row in rows]]
    for t, row in enumerate(actions):
        made.step_into(row, *rows)
        found.append([each.copy() for each in rows])
        if t == cut_at:
            made.cut(np.arange(n) == 1)
    return [np.stack(each) for each in zip(*found, strict=True)]


reset_one, step_one = jax.jit(SixValues().reset), jax.jit(SixValues().step)


def plain_loop(params: float, index: int, actions: np.ndarray) -> list[np.ndarray]:
    """One environment, its functions called one by one, with the flags of NEXT_STEP autoreset."""
    key, used = jax.random.split(jax.random.PRNGKey(int(streams(SEED, [index])[0] >> np.uint64(32))))
    observation, state = reset_one(used, params)
    found, ended = [(observation, 0.0, False, False)], False
    for action in actions:
        key, used = jax.random.split(key)
        if ended:
            observation, state = reset_one(used, params)
            found.append((observation, 0.0, False, False))
            ended = False
            continue
        observation, state, reward, over, limit, _ = step_one(used, state, action, params)
        found.append((observation, reward, bool(over), bool(limit)))
        ended = bool(over | limit)
    return [np.stack([np.asarray(x) for x in each]) for each in zip(*found, strict=True)]


def assert_plain(found: list[np.ndarray], params: float = 0.5, single_flag: bool = False) -> None:
    for i in range(NUM_ENVS):
        expected = plain_loop(params, i, ACTIONS[:, i])
        if single_flag:  # where an episode is over at its limit, it counts as truncated
            expected[2] &= ~expected[3]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one[:, i], other, atol=1e-5)
    assert found[2].any()
    assert found[3].any()


def test_episodes_are_those_of_a_plain_loop_over_the_environment(walk: Any) -> None:
    assert_plain(played(walk))
    assert walk.vector._step._cache_size() == 1


def test_params_of_a_maker_are_used_and_a_single_flag_is_divided() -> None:
    assert_plain(played(batch("quiet")), params=0.0, single_flag=True)


def test_a_batch_in_parts_has_the_same_episodes_and_another_seed_has_others(walk: Any) -> None:
    whole, part = played(walk), played(batch(num_envs=2, first_index=1), ACTIONS[:, 1:])
    for one, other in zip(part, whole, strict=True):
        np.testing.assert_array_equal(one, other[:, 1:])
    observation = walk.new_observation()
    walk.reset_into(observation, SEED + 1)
    assert not np.isclose(observation, whole[0][0]).all(1).any()


def test_a_saved_state_continues_exactly_without_trust_and_a_cut_begins_an_episode(walk: Any) -> None:
    played(walk, ACTIONS[:17], cut_at=16)
    saved, continued = walk.save(), batch()
    assert all(isinstance(leaf, np.ndarray) for leaf in saved.values())
    continued.restore(saved)
    expected = played(walk, ACTIONS[17:], reset=False)
    for one, other in zip(played(continued, ACTIONS[17:], reset=False), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert expected[0][1, 1, 1] == 0  # the time of environment 1
    with pytest.raises(ValueError, match=r"saved state of .* is of another environment"):
        batch(num_envs=2).restore(saved)


def test_make_env_returns_the_vector_environment_and_info_has_its_fields(walk: Any) -> None:
    env = engram.make_env(f"jax:{__name__}:quiet", 2, limit=4)
    assert env.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    env.reset(seed=3)
    for _ in range(4):
        *_, truncated, info = env.step(np.array([0, 1]))
    assert (truncated.any(), info["time"].tolist()) == (True, [4, 4])
    played(walk, ACTIONS[:2])
    assert walk.episode_fields == ("solved", "time")
    assert walk.episode_facts(np.array([0]))[0, 1] == 2


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        ("SixValue", "no 'SixValue'; expected a class with reset and step, .* available: SixValues"),
        ("unmarked", "function with @engram.envs.foreign.environment_maker"),
        ("FewValues", "step returned 4 values; expected 5"),
        ("Wrapped", "the step of Wrapped resets; expected: the environment unwrapped"),
    ],
)
def test_mistakes_are_named(maker: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        played(batch(maker), ACTIONS[:1])


def test_without_jax_the_message_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ValueError, match=r"needs JAX: .*; try: pip install jax"):
        batch()


def test_xla_computes_in_one_thread(walk: Any) -> None:
    product = jax.jit(lambda a: (a @ a).sum())
    values = np.ones((1200, 1200), np.float32)
    product(values).block_until_ready()
    before = {thread.id: thread.user_time for thread in psutil.Process().threads()}
    for _ in range(4):
        product(values).block_until_ready()
    used = [thread.user_time - before.get(thread.id, 0) for thread in psutil.Process().threads()]
    assert sum(seconds > 0.03 for seconds in used) == 1


def test_gymnax_environments_keep_their_final_observation() -> None:
    gymnax = pytest.importorskip("gymnax", reason="pip install gymnax")
    made = make_batch("jax:gymnax:make", 2, env_id="CartPole-v1")
    observation, reward, terminated, truncated = played(made, np.ones((25, 2), np.int64))
    assert terminated.any(0).all()
    assert not truncated.any()
    params = gymnax.make("CartPole-v1")[1]
    limits = np.array([params.x_threshold, params.theta_threshold_radians])
    beyond = (np.abs(observation[..., [0, 2]]) > limits).any(-1)
    np.testing.assert_array_equal(beyond, terminated)  # no observation of the next episode in its place
    assert (reward[1:][terminated[:-1]] == 0).all()
    assert (np.abs(observation[1:][terminated[:-1]]) <= 0.05).all()
