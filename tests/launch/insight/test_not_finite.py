"""Pages and plots of episodes with rewards, values or observations that are nan or inf."""

import io
import json
import re

import numpy as np
import pytest

from engram.actors.factory import ActorFactory
from engram.agents.agent import AgentConfig
from engram.launch.insight.command import all_panels, as_data, option_names
from engram.launch.insight.page import written
from engram.launch.insight.recording import record
from engram.launch.insight.watching import figure


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_page_has_values_that_are_not_finite(bad: float) -> None:
    agent = AgentConfig(core="gru", core_args={"hidden_size": 4})
    actor = ActorFactory(env="CartPole-v1", agent=agent, num_envs=1, unroll_length=1, seed=0).make_actor(0)
    whole = record(actor)
    changed = {name: getattr(whole, name).copy() for name in ("rewards", "values", "probabilities")}
    seen = {name: values.copy() for name, values in whole.observations.items()}
    for values in (*changed.values(), *seen.values()):
        values[3] = bad
    recording = whole._replace(**changed, observations=seen)
    text = written("page", "", option_names(actor), as_data(actor, recording))
    (data,) = re.findall("const data = (.*);", text)
    rewards = json.loads(data)["episode"]["rewards"]
    assert rewards[2] == 1.0
    np.testing.assert_equal(rewards[3], bad)
    panels = all_panels(actor, recording)
    drawn = figure(panels, "title", [])
    assert len(drawn.axes) == len(panels)
    drawn.savefig(io.BytesIO(), format="png")
