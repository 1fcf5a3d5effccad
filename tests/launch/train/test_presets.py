"""The presets against what the papers say, where saying it takes more than copying numbers."""

import pytest
import torch

from engram.launch.train.presets import EASY, PAPER, preset


@pytest.mark.parametrize(("env", "core", "episode", "parameters"), [("pomdp-graph", "fwm", 30, 10_933)])
def test_an_a2c_unroll_is_one_whole_episode(env: str, core: str, episode: int, parameters: int) -> None:
    config = preset("paper", env, core)
    assert config.learner.algorithm == "a2c"
    actor = config.factory().make_actor(0)
    assert sum(p.numel() for p in actor.agent.parameters()) == parameters
    for _ in range(2):  # the second unroll begins where an episode does, too
        unroll = actor.unroll()
        over = unroll.env.terminated | unroll.env.truncated
        assert over.nonzero()[:, 0].tolist() == [episode] * config.envs_per_actor
    assert config.columns * episode == int((~over[:-1]).sum()) == 600 * 30


def test_the_graph_preset_has_each_graph_once_per_batch() -> None:
    batch = preset("paper", "pomdp-graph", "fwm").factory().make_batch()
    batch.reset_into(batch.new_observation(), 1)
    assert sorted(batch.state.graph) == list(range(600))


@pytest.mark.parametrize("env", sorted(PAPER))
@pytest.mark.parametrize("name", ["paper", "easy"])
def test_every_preset_fits_its_world(env: str, name: str) -> None:
    if name == "easy" and env not in EASY:
        with pytest.raises(ValueError, match="there is one for: boxworld, pomdp-graph"):
            preset(name, env, "lstm")
        return
    config = preset(name, env, "lstm")
    factory = config.factory()
    agent = factory.make_agent(factory.make_batch(num_envs=1))
    assert isinstance(agent.policy, torch.nn.Linear)
