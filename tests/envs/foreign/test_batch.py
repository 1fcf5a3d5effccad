"""Foreign environments against the same environments stepped by hand, and every space that can and cannot be read."""

import copy
import pickle
import re
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import EzPickle

from engram.actors.factory import ActorFactory
from engram.agents.config import AgentConfig
from engram.envs.foreign import ForeignBatch, environment_maker
from engram.envs.randomness import streams
from engram.envs.registration import make_batch

ROOT = Path(__file__).parents[3]


@pytest.fixture
def examples(monkeypatch):
    """The directory of examples is importable, as from a shell in the repository."""
    monkeypatch.syspath_prepend(str(ROOT))
    yield
    for name in [name for name in sys.modules if name.startswith("examples")]:
        del sys.modules[name]


class Echo(gymnasium.Env):
    """Shows an observation drawn from its space, and rewards with the sum of the action that it got."""

    def __init__(self, observation: spaces.Space, action: spaces.Space, length: int = 5):
        self.observation_space, self.action_space, self.length = observation, action, length

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert action in self.action_space, (action, type(action))
        self.time += 1
        return self.observation_space.sample(), float(np.sum(action)), self.time == self.length, False, {}


class Rebuilt(EzPickle, Echo):
    """An environment whose pickle begins again, like Gymnasium's physics."""

    def __init__(self) -> None:
        EzPickle.__init__(self)
        Echo.__init__(self, spaces.Discrete(2), spaces.Discrete(2))


class Stuck(Echo):
    """An environment that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(2), spaces.Discrete(2))
        self.lock = open(__file__)

    def close(self) -> None:
        self.lock.close()


def room(batch: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    n = batch.num_envs
    return batch.new_observation(), np.zeros(n, np.float32), np.zeros(n, np.bool_), np.zeros(n, np.bool_)


def started(env: gymnasium.Env | str, num_envs: int = 3, first_index: int = 0, **parameters: Any) -> tuple[Any, tuple]:
    if isinstance(env, str):
        batch = make_batch(env, num_envs, first_index, **parameters)
    else:
        batch = ForeignBatch(lambda: copy.copy(env), num_envs, name="echo")
    rows = room(batch)
    batch.reset_into(rows[0], 1)
    return batch, rows


def play(batch: Any, rows: tuple, actions: np.ndarray) -> list[tuple]:
    """Outputs of `rows` after each of actions [T, N]."""
    seen = []
    for row in actions:
        batch.step_into(row, *rows)
        seen.append(tuple(leaf.copy() for leaf in rows))
    return seen


def assert_same(one: list[tuple], other: list[tuple]) -> None:
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_cartpole_is_stepped_as_by_hand_with_next_step_autoreset():
    batch, rows = started("CartPole-v1", first_index=5)
    actions = np.random.default_rng(0).integers(2, size=(120, 3))
    seen = play(batch, rows, actions)
    for i, state in enumerate(streams(1, range(5, 8))):
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=int(state >> np.uint64(32)))
        over = False
        for t in range(120):
            if over:
                expected = (env.reset()[0], 0.0, False, False)
            else:
                expected = env.step(int(actions[t, i]))[:4]
            for leaf, value in zip(seen[t], expected, strict=True):
                np.testing.assert_array_equal(leaf[i], value)
            over = expected[2] or expected[3]
    assert sum(terminated.sum() for _, _, terminated, _ in seen) > 5
    assert batch.episode_facts(np.array([0, 2])).shape == (2, len(batch.episode_fields))
    batch.close()


def test_the_split_over_batches_changes_nothing():
    actions = np.random.default_rng(0).integers(2, size=(60, 4))
    whole = play(*started("CartPole-v1", 4), actions)
    for first, last in ((0, 1), (1, 4)):
        part = play(*started("CartPole-v1", last - first, first_index=first), actions[:, first:last])
        assert_same(part, [tuple(leaf[first:last] for leaf in row) for row in whole])


def test_parameters_reach_the_environment():
    batch, rows = started("CartPole-v1", max_episode_steps=3, sutton_barto_reward=True)
    seen = play(batch, rows, np.array([[0] * 3, [1] * 3, [0] * 3]))
    assert seen[-1][3].all()
    assert not seen[-1][1].any()


def test_masked_cartpole_hides_the_velocities(examples):
    batch, rows = started("engram.examples.masked_cartpole:MaskedCartPole", max_episode_steps=12)
    full, full_rows = started("CartPole-v1", max_episode_steps=12)
    actions = np.random.default_rng(1).integers(2, size=(40, 3))
    for masked, plain in zip(play(batch, rows, actions), play(full, full_rows, actions), strict=True):
        np.testing.assert_array_equal(masked[0], plain[0][:, [0, 2]])
        assert_same([masked[1:]], [plain[1:]])
    assert batch.single_observation_space.shape == (2,)


def test_minigrid_memory():
    pytest.importorskip("minigrid", reason="pip install minigrid")
    batch, rows = started("MiniGrid-MemoryS7-v0")
    shapes = {key: (part.shape, part.dtype) for key, part in rows[0].items()}
    assert shapes == {"direction": ((3, 4), np.float32), "image": ((3, 7, 7, 3), np.uint8)}
    env = gymnasium.make("MiniGrid-MemoryS7-v0")
    expected, _ = env.reset(seed=int(streams(1, range(1))[0] >> np.uint64(32)))
    random = np.random.default_rng(0)
    for _ in range(30):
        np.testing.assert_array_equal(rows[0]["image"][0], expected["image"])
        assert rows[0]["direction"][0].argmax() == expected["direction"]
        assert (rows[0]["direction"].sum(1) == 1).all()
        action = int(random.integers(3))
        batch.step_into(np.full(3, action), *rows)
        expected, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            break
    saved = batch.save()
    batch.trusted = True
    actions = random.integers(3, size=(20, 3))
    first = [row[1:] for row in play(batch, rows, actions)]
    batch.restore(saved)
    assert_same([row[1:] for row in play(batch, rows, actions)], first)


@pytest.mark.parametrize("name", ["popgym-RepeatPreviousEasy-v0", "popgym.envs.repeat_previous:RepeatPreviousEasy"])
def test_popgym_repeat_previous(name):
    pytest.importorskip("popgym", reason="pip install popgym")
    batch, rows = started(name, 2)
    assert batch.single_observation_space == spaces.Box(0, 1, (4,), np.float32)
    assert batch.single_action_space == spaces.Discrete(4)
    # answering the card of three steps before is right from then on
    cards, rewards = [rows[0].argmax(1)], []
    while not rows[2].any():
        batch.step_into(cards[max(len(cards) - 4, 0)], *rows)
        cards.append(rows[0].argmax(1))
        rewards.append(rows[1].copy())
    assert len(rewards) > 40
    assert (np.array(rewards)[4:] > 0).all()


SPACES = {
    "box": (spaces.Box(-1, 1, (2, 3), np.float64), spaces.Box(-1, 1, (2, 3), np.float32)),
    "bytes": (spaces.Box(0, 255, (2, 2, 3), np.uint8), spaces.Box(0, 255, (2, 2, 3), np.uint8)),
    "whole": (spaces.Box(-3, 9, (2,), np.int64), spaces.Box(-3, 9, (2,), np.float32)),
    "number": (spaces.Box(0, 2, (), np.float32), spaces.Box(0, 2, (1,), np.float32)),
    "binary": (spaces.MultiBinary((2, 2)), spaces.Box(0, 1, (2, 2), np.float32)),
    "discrete": (spaces.Discrete(4, start=-2), spaces.Box(0, 1, (4,), np.float32)),
    "several": (spaces.MultiDiscrete([2, 3], start=[1, 5]), spaces.Box(0, 1, (5,), np.float32)),
    "grid": (spaces.MultiDiscrete([[2, 3], [4, 5]]), spaces.Box(0, 1, (14,), np.float32)),
}


def as_agents_see(space: spaces.Space, value: Any) -> np.ndarray:
    """One observation as it should be read, one entry at a time."""
    if isinstance(space, spaces.Discrete):
        return np.eye(space.n)[value - space.start]
    if isinstance(space, spaces.MultiDiscrete):
        sizes, first = space.nvec.ravel(), space.start.ravel()
        return np.concatenate([np.eye(n)[v - s] for n, v, s in zip(sizes, value.ravel(), first, strict=True)])
    return np.reshape(np.asarray(value), space.shape or (1,))


@pytest.mark.parametrize("kind", SPACES)
def test_observations_of_every_kind(kind):
    space, expected = SPACES[kind]
    batch, rows = started(Echo(space, spaces.Discrete(2)), 1)
    assert batch.single_observation_space == expected
    assert rows[0].dtype == expected.dtype
    again = Echo(space, spaces.Discrete(2))
    first, _ = again.reset(seed=int(streams(1, range(1))[0] >> np.uint64(32)))
    np.testing.assert_allclose(rows[0][0], as_agents_see(space, first), rtol=1e-6)
    for _ in range(8):
        # both environments share the space, hence its stream of samples
        batch.step_into(np.zeros(1, np.int64), *rows)
        assert rows[0][0] in expected


@pytest.mark.parametrize(
    ("space", "outside"),
    [
        (spaces.MultiDiscrete([3, 4]), [1, -1]),
        (spaces.MultiDiscrete([3, 4], start=[5, 0]), [4, 0]),
        (spaces.Discrete(3), 7),
        (spaces.Discrete(3, start=2), 1),
    ],
)
def test_an_observation_outside_of_its_space_is_refused(space, outside):
    batch, rows = started(Echo(space, spaces.Discrete(2)), 1)
    batch.vector.envs[0].step = lambda _: (np.array(outside), 1.0, False, False, {})
    shown = re.escape(str(np.array(outside)))
    with pytest.raises(
        ValueError, match=rf"echo returned the observation {shown}; observation_space is {type(space).__name__}"
    ):
        batch.step_into(np.zeros(1, np.int64), *rows)


def test_nested_dicts_and_text(caplog):
    inner = spaces.Dict({"a": spaces.Discrete(3), "words": spaces.Text(4)})
    space = spaces.Dict({"deep": inner, "flat": spaces.Box(0, 1, (2,), np.float32)})
    _, rows = started(Echo(space, spaces.Discrete(2)), 2)
    assert "'words'" in caplog.text
    assert rows[0].keys() == {"deep", "flat"}
    assert rows[0]["deep"].keys() == {"a"}
    assert rows[0]["deep"]["a"].shape == (2, 3)
    assert (rows[0]["deep"]["a"].sum(1) == 1).all()
    assert rows[0]["flat"].any()


@pytest.mark.parametrize(
    ("space", "expected", "actions", "sums"),
    [
        (spaces.Discrete(3), spaces.Discrete(3), [0, 2], [0, 2]),
        (spaces.Discrete(3, start=7), spaces.Discrete(3), [0, 2], [7, 9]),
        (spaces.Discrete(3, start=-1, dtype=np.int32), spaces.Discrete(3), [0, 2], [-1, 1]),
        (spaces.MultiDiscrete([4], start=[2]), spaces.Discrete(4), [0, 3], [2, 5]),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 3]), [[0, 2], [1, 1]], [2, 2]),
        (spaces.MultiDiscrete([[2, 3]], start=[[5, 0]]), spaces.MultiDiscrete([2, 3]), [[0, 2], [1, 1]], [7, 7]),
        (spaces.MultiDiscrete([2, 3], dtype=np.int8), spaces.MultiDiscrete([2, 3]), [[0, 2], [1, 1]], [2, 2]),
    ],
)
def test_actions_of_every_kind(space, expected, actions, sums):
    batch, rows = started(Echo(spaces.Discrete(2), space), 2)
    assert batch.single_action_space == expected
    batch.step_into(np.array(actions), *rows)
    np.testing.assert_array_equal(rows[1], sums)


def test_a_tuple_is_a_dict_by_position():
    space = spaces.Tuple([spaces.Discrete(2), spaces.Tuple([spaces.Box(0, 9, (3,), np.float32)])])
    batch, rows = started(Echo(space, spaces.Discrete(2)), 2)
    assert batch.single_observation_space == spaces.Dict(
        {"0": spaces.Box(0, 1, (2,), np.float32), "1": spaces.Dict({"0": spaces.Box(0, 9, (3,), np.float32)})}
    )
    np.testing.assert_array_equal(rows[0]["0"].sum(1), [1, 1])
    assert rows[0]["1"]["0"].any()


def test_real_actions_fill_the_environments_bounds_and_are_clipped_to_them():
    space = spaces.Box(np.array([[0, -np.inf, -np.inf]]), np.array([[10, np.inf, 5]]), dtype=np.float64)
    batch, rows = started(Echo(spaces.Discrete(2), space), 2)
    seen = batch.single_action_space
    np.testing.assert_array_equal(seen.low, [-1, -np.inf, -np.inf])
    np.testing.assert_array_equal(seen.high, [1, np.inf, 5])
    batch.step_into(np.array([[0.5, 40.0, 2.0], [-3.0, -40.0, 9.0]], np.float32), *rows)
    np.testing.assert_array_equal(rows[1], [7.5 + 40 + 2, 0 - 40 + 5])


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (
            spaces.Graph(spaces.Discrete(2), None),
            spaces.Discrete(2),
            "observation space Graph.*supported: Box, Discrete",
        ),
        (spaces.Text(3), spaces.Discrete(2), r"observation space Text.*supported: Box"),
        (spaces.Dict({"a": spaces.Text(3)}), spaces.Discrete(2), "observation space Dict.*supported: Box"),
        (spaces.Dict({"a": spaces.Tuple([])}), spaces.Discrete(2), "observation space Tuple"),
        (spaces.Discrete(2), spaces.Text(3), r"action space Text.*supported: Discrete, MultiDiscrete and Box"),
        (spaces.Discrete(2), spaces.MultiBinary(2), "action space MultiBinary"),
        (spaces.Discrete(2), spaces.Box(0, 9, (2,), np.int64), r"action space Box.*MultiDiscrete and Box of floats"),
    ],
)
def test_unsupported_spaces_are_named(observation, action, message):
    with pytest.raises(ValueError, match=f"echo has the {message}|echo has the .*{message}"):
        started(Echo(observation, action))


def test_saved_copies_continue_exactly():
    actions = np.random.default_rng(2).integers(2, size=(100, 3))
    batch, rows = started("CartPole-v1")
    while not rows[2].any():  # an episode has just ended: its copy must start a new one after restoring, too
        batch.step_into(np.ones(3, np.int64), *rows)
    saved = batch.save()
    assert saved["pickled"].dtype == np.uint8
    expected = play(batch, rows, actions)
    other = make_batch("CartPole-v1", 3)
    other.trusted = True
    other.restore(saved)
    assert_same(play(other, room(other), actions), expected)
    smaller = make_batch("CartPole-v1", 2)
    smaller.trusted = True
    with pytest.raises(ValueError, match="contains 3 environments; expected 2"):
        smaller.restore(saved)


def test_an_episode_that_is_cut_ends_there():
    """The next step begins a new one in that copy, and the others go on."""
    batch, rows = started("CartPole-v1")
    whole, expected = started("CartPole-v1")
    where = np.array([False, True, False])
    for each, outputs in ((batch, rows), (whole, expected)):
        each.step_into(np.ones(3, np.int64), *outputs)
    batch.cut(where)
    for each, outputs in ((batch, rows), (whole, expected)):
        each.step_into(np.ones(3, np.int64), *outputs)
    assert rows[1].tolist() == [1, 0, 1]
    assert np.array_equal(rows[0][~where], expected[0][~where])
    assert np.abs(rows[0][1]).max() <= 0.05, "CartPole begins within 0.05 of its middle"


class Trap:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return Path.touch, (self.mark,)


def test_a_saved_state_is_code_and_is_not_run_unless_it_is_trusted(tmp_path):
    saved = {"pickled": np.frombuffer(pickle.dumps(Trap(tmp_path / "mark")), np.uint8)}
    batch, _ = started("CartPole-v1")
    with pytest.raises(ValueError, match="saved state of CartPole-v1 is code, and not trusted"):
        batch.restore(saved)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(("name", "message"), [("Rebuilt", "begins again"), ("Stuck", "cannot be pickled")])
def test_environments_that_cannot_be_saved_say_so(name, message):
    batch = ForeignBatch(globals()[name], 2, name=name)
    with pytest.raises(ValueError, match=f"{name} cannot be saved: .*{message}"):
        batch.save()
    batch.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPol-v1", "unknown environment 'CartPol-v1'; did you mean: CartPole-v1"),
        ("maze-twim", "did you mean: maze-twin"),
        ("nowhere:Nothing", "needs the module nowhere: No module named 'nowhere'"),
        (
            "engram.envs.maze:Mase",
            "engram.envs.maze: no 'Mase'; expected a subclass of gymnasium.Env, .*available: Maze",
        ),
        (
            "fractions:Fraction",
            "fractions: 'Fraction' is no environment; .*available: \\(none\\)",
        ),
        (
            "subprocess:getoutput",
            "subprocess: 'getoutput' is no environment; expected .* @engram.envs.foreign",
        ),
        ("math:pi", "math: 'pi' is no environment; expected"),
        ("my_environments:", "environment 'my_environments:' is incomplete; expected module:Class"),
        ("gymnasium:Env", "gymnasium: 'Env' is no environment"),
    ],
)
def test_unknown_environments_are_answered_with_known_ones(name, message):
    with pytest.raises(ValueError, match=message):
        make_batch(name, 1)


def test_ids_that_cannot_be_made():
    gymnasium.register("test/Nowhere-v0", entry_point="nowhere:Thing")
    try:
        with pytest.raises(ValueError, match=r"test/Nowhere-v0 cannot be loaded: .*nowhere"):
            make_batch("test/Nowhere-v0", 1)
    finally:
        del gymnasium.registry["test/Nowhere-v0"]


def test_unknown_parameters_are_answered_with_known_ones(examples):
    for name, near in (
        ("CartPole-v1", "sutton_barto_reward"),
        ("engram.examples.masked_cartpole:MaskedCartPole", "max_epi"),
    ):
        with pytest.raises(ValueError, match=f"{name} has no parameter '{near}x'; (did you mean|available): {near}"):
            make_batch(name, 1, **{f"{near}x": 1})
    for name in ("maze", "engram.envs.maze:MazeBatch"):
        with pytest.raises(ValueError, match=f"^{name} has no parameter 'first_index'"):
            make_batch(name, 1, **{"first_index": 3})


@pytest.mark.integration
def test_third_party_batches_run_as_batches():
    batch = make_batch("engram.envs.maze:MazeBatch", 3, 2, size=9)
    ours = make_batch("maze", 3, 2, size=9)
    assert type(batch) is type(ours)
    for each in (batch, ours):
        each.reset(seed=4)
    np.testing.assert_array_equal(batch.state.goal, ours.state.goal)


def test_a_marked_function_makes_environments(monkeypatch):
    module = types.ModuleType("marked_environment")

    def make(length: int = 3) -> Echo:
        return Echo(spaces.Discrete(2), spaces.Discrete(2), length)

    module.make = make  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "marked_environment", module)
    with pytest.raises(ValueError, match="'make' is no environment; expected"):
        make_batch("marked_environment:make", 2)
    environment_maker(make)
    assert make_batch("marked_environment:make", 2, length=4).vector.envs[0].length == 4


def test_environments_that_can_draw_are_asked_to():
    pytest.importorskip("pygame", reason="pip install pygame")
    batch, _ = started("CartPole-v1")
    picture = batch.draw(1)
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    silent, _ = started(Echo(spaces.Discrete(2), spaces.Discrete(2)))
    with pytest.raises(ValueError, match="echo renders no images"):
        silent.draw(0)


def test_an_environment_is_made_for_pictures_where_it_says_that_it_has_them():
    assert make_batch("CartPole-v1", 1).vector.envs[0].render_mode == "rgb_array"


class Named(gymnasium.Env[Any, Any]):
    """Takes parameters that are called as those of functions on the way to it."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def __init__(self, name: str, num_envs: int, first_index: int = 0, id: int = 0, env: str = "") -> None:
        self.given = name, num_envs, first_index, id, env


def test_parameters_of_an_environment_may_have_any_name():
    given = {"name": "x", "num_envs": 7, "first_index": 3, "id": 4, "env": "y"}
    named = f"{Named.__module__}:Named"
    gymnasium.register("test/Named-v0", entry_point=Named)
    try:
        for env in (named, "test/Named-v0"):
            agent = AgentConfig(core="lstm")
            factory = ActorFactory(env=env, env_args=given, agent=agent, num_envs=2, unroll_length=3, seed=0)
            assert [each.unwrapped.given for each in factory.make_batch().vector.envs] == [("x", 7, 3, 4, "y")] * 2
    finally:
        del gymnasium.registry["test/Named-v0"]
    with pytest.raises(ValueError, match="has no parameter 'num_envs'"):
        make_batch("engram.envs.maze:MazeBatch", 2, **{"num_envs": 3})
