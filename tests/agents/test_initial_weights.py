"""Settings of a new agent's weights."""

import pytest
import torch

from engram.agents.agent import Agent
from engram.agents.config import AgentConfig, TorsoConfig
from engram.agents.specs import ArraySpec, ChoiceSpec

OBSERVATION, ACTION = ArraySpec((3, 4, 2), 1.0), ChoiceSpec((5,))


PLAIN = TorsoConfig(embedding_size=8)


def agent(torso: TorsoConfig = PLAIN, **options: float) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return dict(Agent(OBSERVATION, ACTION, AgentConfig(core="gru", torso=torso, **options)).named_parameters())


def differing(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in a if not torch.equal(a[name], b[name])}


def test_policy_scale_multiplies_the_policys_weights_alone():
    plain, scaled = agent(), agent(policy_scale=6.0)
    assert differing(plain, scaled) == {"policy.weight"}
    assert torch.equal(scaled["policy.weight"], 6 * plain["policy.weight"])


def test_embeddings_scale_and_bias_change_that_layer_alone():
    plain, scaled = agent(), agent(TorsoConfig(embedding_size=8, embedding_scale=5.0, embedding_bias=-1.0))
    assert differing(plain, scaled) == {"torso.linear.weight", "torso.linear.bias"}
    assert torch.equal(scaled["torso.linear.weight"], 5 * plain["torso.linear.weight"])
    assert torch.equal(scaled["torso.linear.bias"], plain["torso.linear.bias"] - 1)


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_scales_out_of_range_are_named(value):
    with pytest.raises(ValueError, match=f"policy_scale is {value}; allowed: at least 0"):
        AgentConfig(policy_scale=value)
    with pytest.raises(ValueError, match=f"embedding_scale is {value}; allowed: above 0"):
        TorsoConfig(embedding_scale=value)
