"""Demands on a device against counts by hand, and the shares reached against arithmetic."""

from dataclasses import replace

import pytest
import torch

from engram.agents.agent import AgentConfig
from engram.launch.metrics.roofline import Roof, demands, roof, roofline
from engram.launch.run.config import RunConfig

CPU = torch.device("cpu")
HIDDEN, ACTIONS, SEEN = 8, 4, 17
CONFIG = RunConfig(
    env="pomdp-graph",
    agent=AgentConfig(core="feedforward", core_args={"hidden_size": HIDDEN}),
    unroll_length=5,
    envs_per_update=3,
)


def test_operations_of_products_are_those_counted_by_hand() -> None:
    """The first layer's inputs need no gradient, all other factors do."""
    factory = CONFIG.factory()
    agent = factory.make_agent(factory.make_batch(0, 1))
    layers = [p.numel() for p in agent.parameters() if p.dim() == 2]
    found = demands(CONFIG)
    assert found["infer"].flops == 2 * sum(layers)
    assert found["learn"].flops == 2 * (2 * layers[0] + 3 * sum(layers[1:]))


def test_a_wider_batch_asks_the_same_operations_and_fewer_bytes_of_each_step() -> None:
    """Weights are read once for all of its environments."""
    large = replace(CONFIG, agent=AgentConfig(core="feedforward", core_args={"hidden_size": 256}))
    narrow, wide = (demands(replace(large, envs_per_update=size))["learn"] for size in (1, 64))
    assert wide.flops == narrow.flops
    assert 4 * SEEN < wide.bytes < narrow.bytes * 0.7


def test_every_step_of_an_unroll_asks_the_same() -> None:
    agent = AgentConfig(core="rmc", core_args={"num_slots": 2, "num_heads": 2, "head_size": 4})
    few, many = (demands(replace(CONFIG, agent=agent, unroll_length=length))["learn"] for length in (3, 300))
    assert few.flops == pytest.approx(many.flops, rel=0.1)


def test_shares_are_of_the_devices_most() -> None:
    found = roofline(CONFIG, CPU, {"infer": 1e-3, "learn": 2e-3}, 0.02)
    asked, limits = demands(CONFIG), found["roofs"]["cpu"]
    for name, seconds in (("infer", 1e-3), ("learn", 2e-3)):
        part = found["parts"][name]
        assert part["flops"] == pytest.approx(asked[name].flops / seconds)
        assert part["of_flops"] == pytest.approx(part["flops"] / limits["flops"], abs=1e-4)
        assert part["of_bandwidth"] == pytest.approx(part["bandwidth"] / limits["bandwidth"], abs=1e-4)


def test_a_processor_does_more_than_a_million_and_less_than_a_quadrillion() -> None:
    found = roof(CPU, 0.02)
    assert all(1e6 < each < 1e15 for each in found)
    assert Roof._fields == ("flops", "bandwidth")
