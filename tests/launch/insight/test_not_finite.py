"""Pages and plots of episodes with rewards, values or observations that are nan or inf."""

import json
import re

import numpy as np
import pytest

from engram.actors.factory import ActorFactory
from engram.agents.config import AgentConfig
from engram.agents.inside import panels as state_panels
from engram.launch.insight.page import figure, record, seen_panels, written


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
    panels = [*seen_panels(recording), *state_panels(actor.agent.core, recording.trace)]
    text = written("page", "", recording, panels)
    (data,) = re.findall("const data = (.*);", text)
    assert json.loads(data)["table"]["reward"][2:4] == ["1", str(bad)]
    drawn = figure(panels, "title")
    assert len(drawn.axes) == len(panels)
    assert np.isnan(drawn.axes[1].lines[0].get_ydata()[3])
