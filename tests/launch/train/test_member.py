"""A member of a population that takes over another's weights."""

import time

import numpy as np
import pytest
import torch

from engram.launch.api.training import make_agents, make_learners
from engram.launch.config.run_flags import parse_run
from engram.launch.metrics.member import Member

WORDS = ["--env", "t-maze", "--core", "feedforward", "--conv-channels", "--embedding-size", "4", "--population", "2"]


def test_a_copied_member_is_scored_by_episodes_that_began_after_the_copy():
    config = parse_run([*WORDS, "--envs-per-actor", "2", "--envs-per-update", "2", "--unroll-length", "4", "--local"])
    agents, fields = make_agents(config, config.factory(), torch.device("cpu"))
    members = [Member(i, config, learner, None, 1, fields) for i, learner in enumerate(make_learners(config, agents))]
    copied = members[1]
    episodes = np.ones((1200, 3 + len(fields)))
    episodes[:, 0] = np.arange(1200) % 2
    copied.accumulator.add_episodes(episodes)
    assert copied.score() is not None
    copied.become(members[0].snapshot(lasting=True), {})
    assert copied.score() is None
    copied.accumulator.add_episodes(episodes)
    assert copied.score() is not None


@pytest.mark.parametrize("seconds", [0.05, 0.0])
def test_a_row_is_due_some_seconds_after_the_first_update(seconds: float) -> None:
    words = ["--log-every", "1000000000", "--log-seconds", str(seconds), "--env", "CartPole-v1", "--core", "gru"]
    config = parse_run([*words, "--core-args", "hidden_size=4", "--local"])
    agents, fields = make_agents(config, config.factory(), torch.device("cpu"))
    member = Member(0, config, make_learners(config, agents)[0], None, 1, fields)
    time.sleep(0.06)
    member.learner.steps = 8
    assert not member.due(), "what came before the first update does not count"
    time.sleep(0.06)
    assert member.due() == (seconds > 0)
    member.log(1, 0, None)
    assert not member.due()
    time.sleep(0.06)
    assert not member.due(), "no steps since the last row"
    member.learner.steps = 16
    assert member.due() == (seconds > 0)
