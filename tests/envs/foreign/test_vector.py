"""Vector environments in each autoreset mode give the same episodes, the same targets, and the same facts."""

import sys
import types
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from engram.envs.foreign import ForeignBatch, environment_maker
from engram.envs.registration import make_batch
from engram.learners.returns import n_step_returns, transitions

DISCOUNT, STEPS, NUM_ENVS = 0.9, 60, 4
MODES = list(AutoresetMode)


class Countdown(gymnasium.Env):
    """Pays 1 a step; terminates after `length` steps, or, without an end of its own, is truncated there.

    The values are known: (1 - discount^(steps left)) / (1 - discount) where it terminates, else 1 / (1 - discount).
    """

    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict({"time": spaces.Box(0, 99, (1,)), "endless": spaces.Discrete(2)})
    episode_fields = ("last",)

    def __init__(self, length: int, endless: bool) -> None:
        self.length, self.endless, self.time = length, endless, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.time = 0
        return self._observation(), {"last": -1}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        assert self.time < self.length, "an episode that has ended"
        self.time += 1
        over = self.time == self.length
        return self._observation(), 1.0, over and not self.endless, over and self.endless, {"last": self.time}

    def _observation(self) -> Any:
        return {"time": np.array([self.time], np.float32), "endless": int(self.endless)}


LENGTHS = ((3, True), (5, False), (1, True), (7, True))


@environment_maker
def countdowns(num_envs: int, mode: str = "NextStep", equal: bool = False) -> VectorEnv:
    """A SyncVectorEnv of Countdowns; with `equal`, all of one length."""
    kinds = [(4, True)] * num_envs if equal else LENGTHS[:num_envs]
    return SyncVectorEnv([lambda kind=kind: Countdown(*kind) for kind in kinds], autoreset_mode=mode)


class Deaf(gymnasium.vector.VectorWrapper):
    """Resets all environments whatever the mask says."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.env.reset(seed=seed)


class Silent(gymnasium.vector.VectorWrapper):
    """Returns no final observations."""

    def step(self, actions: Any) -> Any:
        *rest, info = self.env.step(actions)
        return *rest, {key: value for key, value in info.items() if "final_obs" not in key}


@environment_maker
def deaf(num_envs: int, mode: str) -> VectorEnv:
    return Deaf(countdowns(num_envs, mode))


@environment_maker
def silent(num_envs: int) -> VectorEnv:
    return Silent(countdowns(num_envs, "SameStep"))


@environment_maker
def few(num_envs: int) -> VectorEnv:
    return countdowns(num_envs - 1)


class Rendering(gymnasium.vector.VectorWrapper):
    """Renders one array of all images."""

    def render(self) -> Any:
        return np.full((self.num_envs, 2, 3, 3), np.arange(self.num_envs)[:, None, None, None])


@environment_maker
def rendering(num_envs: int) -> VectorEnv:
    return Rendering(countdowns(num_envs))


class Played(types.SimpleNamespace):
    """Steps 0..STEPS of a batch: observation, reward, terminated, truncated as arrays [STEPS + 1, N], and facts."""


def played(batch: Any, cut_at: int = -1) -> Played:
    n = batch.num_envs
    rows = batch.new_observation(), np.zeros(n, np.float32), np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    batch.reset_into(rows[0], 3)
    leaves, facts = [[*rows[0].values(), *rows[1:]]], list[np.ndarray]()
    leaves[0] = [leaf.copy() for leaf in leaves[0]]
    for t in range(STEPS):
        batch.step_into(np.zeros(n, np.int64), *rows)
        if t == cut_at:
            batch.cut(np.arange(n) == 3)
        leaves.append([leaf.copy() for leaf in (*rows[0].values(), *rows[1:])])
        if len(ended := np.flatnonzero(rows[2] | rows[3])):
            facts.append(batch.episode_facts(ended))
    names = (*rows[0], "reward", "terminated", "truncated")
    whole = {name: np.stack(values) for name, values in zip(names, zip(*leaves, strict=True), strict=True)}
    return Played(facts=np.concatenate(facts), **whole)


def vector(mode: AutoresetMode, maker: str = "countdowns", num_envs: int = NUM_ENVS, **parameters: Any) -> Any:
    return make_batch(f"{__name__}:{maker}", num_envs, mode=mode.value, **parameters)


def targets(seen: Played) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The learner's n-step targets [T, N] from the known values, these values, and which steps count."""
    left = np.array([length for length, _ in LENGTHS]) - seen.time[..., 0]
    endless = seen.endless[..., 1] == 1
    values = np.where(endless, 1.0, 1.0 - DISCOUNT**left) / (1 - DISCOUNT)
    tensors = (torch.from_numpy(getattr(seen, name)) for name in ("reward", "terminated", "truncated"))
    found = transitions(*tensors, torch.from_numpy(values[:-1]), DISCOUNT)
    known = torch.from_numpy(values)
    returns = n_step_returns(found.rewards, found.discounts, known[:-1], known[-1])
    return returns.targets.numpy(), values[:-1], found.valid.numpy()


def single() -> ForeignBatch:
    """The same environments without a vector environment."""
    kinds = iter(LENGTHS)
    return ForeignBatch(lambda: Countdown(*next(kinds)), NUM_ENVS, name="countdowns")


@pytest.mark.parametrize("mode", MODES)
def test_all_modes_are_the_same_episodes_and_targets_and_truncation_bootstraps_right(mode: AutoresetMode) -> None:
    seen, expected = played(vector(mode)), played(single())
    for name in vars(expected):
        np.testing.assert_array_equal(getattr(seen, name), getattr(expected, name), name)
    assert seen.truncated.any(axis=0).tolist() == [True, False, True, True]
    found, values, valid = targets(seen)
    np.testing.assert_array_equal(found, targets(expected)[0])
    np.testing.assert_allclose(found[valid], values[valid], rtol=1e-6)  # rewards are float32
    assert set(seen.facts[:, 1]) == {1, 3, 5, 7}


@pytest.mark.parametrize("mode", MODES)
def test_an_episode_can_be_cut_in_all_modes(mode: AutoresetMode) -> None:
    seen, expected = played(vector(mode), 30), played(single(), 30)
    for name in vars(expected):
        np.testing.assert_array_equal(getattr(seen, name), getattr(expected, name), name)


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_a_vector_environment_that_ignores_the_mask_is_refused_unless_all_episodes_end_together(mode: str) -> None:
    batch = make_batch(f"{__name__}:deaf", NUM_ENVS, mode=mode)
    with pytest.raises(
        ValueError, match=r":deaf resets all environments although options\['reset_mask'\] selects some"
    ):
        played(batch)
    together = make_batch(f"{__name__}:countdowns", 3, mode=mode, equal=True)
    together.vector = Deaf(together.vector)
    assert played(together).truncated.sum(0).tolist() == [STEPS // 5] * 3


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        ("silent", r"silent.step returned no info\['final_obs'\] of environment 2, whose episode has ended"),
        ("few", "few made 3 environments; expected num_envs, which is 4"),
    ],
)
def test_vector_environments_that_break_the_contract_are_named(maker: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        played(make_batch(f"{__name__}:{maker}", NUM_ENVS))


def test_a_mode_that_is_not_declared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = countdowns(2)
    made.metadata.pop("autoreset_mode")
    monkeypatch.setattr(sys.modules[__name__], "undeclared", environment_maker(lambda num_envs: made), raising=False)
    with pytest.raises(ValueError, match=r"metadata\['autoreset_mode'\] is None; allowed: .*NEXT_STEP"):
        make_batch(f"{__name__}:undeclared", 2)


def test_a_vector_entry_point_and_the_checks_before_a_run() -> None:
    batch = make_batch("CartPole-v1", 3)
    gymnasium.register("test/Flock-v0", vector_entry_point="gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv")
    try:
        flock = make_batch("test/Flock-v0", 3, max_episode_steps=20)
    finally:
        del gymnasium.registry["test/Flock-v0"]
    flock.check()
    assert flock.single_observation_space == batch.single_observation_space
    rows = flock.new_observation(), np.zeros(3, np.float32), np.zeros(3, np.bool_), np.zeros(3, np.bool_)
    flock.reset_into(rows[0], 1)
    saved = flock.save()
    flock.trusted = True
    turns: list[list[np.ndarray]] = []
    for _ in range(2):
        turns.append([])
        for _ in range(30):
            flock.step_into(np.ones(3, np.int64), *rows)
            turns[-1].append(rows[0].copy())
        flock.restore(saved)
    np.testing.assert_array_equal(*turns)


def test_images_of_all_environments_may_be_one_array():
    image = make_batch(f"{__name__}:rendering", NUM_ENVS).draw(2)
    assert image.shape == (2, 3, 3)
    assert (image == 2).all()
