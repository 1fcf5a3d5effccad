"""A recording is the episode that rl-eval plays, step for step, and its trace is what the core did."""

import numpy as np
import torch

from engram.actors.factory import ActorFactory
from engram.agents.config import AgentConfig
from engram.launch.insight.page import record
from engram.launch.runs.trained import make_actor

ENVIRONMENT = {"difficulty": 0, "half_width": 4, "limbo_time": 6, "teleport_delay": 2, "timeout_frames": 30}


def make_factory() -> ActorFactory:
    agent = AgentConfig(core="gru", core_args={"hidden_size": 8}, previous_action=True)
    return ActorFactory(env="t-maze", env_args=ENVIRONMENT, agent=agent, num_envs=1, unroll_length=1, seed=0)


def test_it_is_the_episode_that_an_actor_plays_unrecorded() -> None:
    """Actions and rewards are equal; values up to rounding, since an actor prepares steps only for longer unrolls."""
    factory = make_factory()
    weights = factory.make_actor(0).agent.state_dict()
    recorded_by, plain = (
        make_actor(factory, weights, seed=3, greedy=False, num_envs=1, unroll_length=length) for length in (1, 40)
    )
    first, second = record(recorded_by), record(recorded_by)
    unrolls = [plain.unroll() for _ in range(3)]
    rewards = torch.cat([unroll.env.reward[:-1, 0] for unroll in unrolls]).numpy()
    values = torch.cat([unroll.agent.value[:, 0] for unroll in unrolls]).numpy()
    actions = torch.cat([unroll.agent.action[:, 0] for unroll in unrolls]).numpy()
    steps = len(first.values)
    assert first.complete
    np.testing.assert_allclose(first.values, values[:steps], atol=1e-6)
    np.testing.assert_array_equal(first.rewards, rewards[:steps])
    np.testing.assert_array_equal(first.actions[:, 0], actions[:steps])
    np.testing.assert_allclose(second.values, values[steps : steps + len(second.values)], atol=1e-6)
    episodes = torch.cat([unroll.episodes for unroll in unrolls]).numpy()
    assert episodes[0, 1:3].tolist() == [first.rewards[1:].sum(), steps - 1]


def test_the_trace_is_what_the_core_did() -> None:
    actor = make_factory().make_actor(0)
    recording = record(actor)
    trace, core = recording.trace, actor.agent.core
    with torch.no_grad():
        _, after = core(trace.inputs, trace.before)
    torch.testing.assert_close(after.h, trace.after.h)
    torch.testing.assert_close(trace.before.h[1:], trace.after.h[:-1])
    assert torch.equal(trace.before.h[0], core.initial_state(1).h[0])
