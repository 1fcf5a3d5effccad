"""A member of a population that takes over another's weights."""

import numpy as np
import torch

from engram.launch.api.training import make_agents, make_learners
from engram.launch.run.run_flags import parse_run
from engram.launch.train.member import Member

WORDS = ["--env", "t-maze", "--core", "feedforward", "--conv-channels", "--embedding-size", "4", "--population", "2"]


def test_a_copied_member_is_scored_by_episodes_that_began_after_the_copy():
    config = parse_run([*WORDS, "--envs-per-actor", "2", "--batch-size", "2", "--unroll-length", "4", "--local"])
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
