"""Prediction of the next observation or reward from the core's output and the action: loss, mask and effect."""

import pytest
import torch

from engram.actors.unroll import Unroll
from engram.agents.agent import Agent
from engram.agents.config import AgentConfig
from engram.agents.prediction import Prediction
from engram.agents.specs import ArraySpec, ChoiceSpec
from engram.agents.values import AgentOutput, EnvOutput
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner

ACTIONS = ChoiceSpec((2,))


def silent(prediction: Prediction, answer: torch.Tensor) -> None:
    """Let it always predict `answer` [S], and have observed something."""
    with torch.no_grad():
        prediction.moments.weight.fill_(1.0)
        for parameter in prediction.parameters():
            parameter.zero_()
        prediction.layers[2].bias.copy_(answer)  # pyright: ignore


def test_the_loss_is_half_the_mean_squared_error_in_running_deviations() -> None:
    prediction = Prediction(ArraySpec((2, 3)), 4, 8)
    prediction.moments.mean.copy_(torch.arange(6.0))
    prediction.moments.deviation.copy_(torch.arange(1.0, 7.0))
    seen = torch.randn(5, 7, 2, 3)
    silent(prediction, torch.full((6,), 0.3))
    numbers = (seen.flatten(2) - torch.arange(6.0)) / torch.arange(1.0, 7.0)
    torch.testing.assert_close(prediction(torch.zeros(5, 7, 4), seen), 0.5 * (0.3 - numbers).square().mean(-1))


@pytest.mark.parametrize("scale", [1.0, 1 / 255])
def test_each_number_that_changes_adds_as_much_and_constant_ones_nothing(scale: float) -> None:
    prediction = Prediction(ArraySpec((4,), scale), 4, 8)
    seldom = (torch.rand(40, 50) < 0.05).float()
    seen = torch.stack([200 + 20 * torch.randn(40, 50), 3 * seldom, torch.full((40, 50), 7.0), seldom], -1)
    prediction.observe(seen)
    silent(prediction, torch.zeros(4))
    assert prediction(torch.zeros(40, 50, 4), seen).mean().item() == pytest.approx(0.5 * 3 / 4, rel=1e-3)


def test_before_anything_was_observed_there_is_no_loss() -> None:
    prediction = Prediction(ArraySpec((3,)), 4, 8)
    seen = 200 + 50 * torch.randn(4, 5, 3)
    inputs = torch.randn(4, 5, 4, requires_grad=True)
    loss = prediction(inputs, seen)
    loss.sum().backward()
    assert not loss.any()
    assert inputs.grad is not None
    assert not inputs.grad.any()
    prediction.observe(seen)
    assert 0 < prediction(inputs, seen).max() < 10


def test_parts_of_a_dict_are_predicted_in_the_order_of_their_keys() -> None:
    spec = {"b": ArraySpec((2,)), "a": {"d": ArraySpec((1,)), "c": ArraySpec((1, 1), scale=1 / 255)}}
    prediction = Prediction(spec, 4, 8)  # pyright: ignore
    seen = {"b": torch.full((1, 1, 2), 4.0), "a": {"d": torch.full((1, 1, 1), 3.0), "c": torch.full((1, 1, 1, 1), 255)}}
    silent(prediction, torch.tensor([10.0, 3.0, 4.0, 4.0]))  # 255 is clipped to 10
    assert prediction(torch.zeros(1, 1, 4), seen).item() == 0


@pytest.mark.parametrize("shape", [(84, 84, 4), (4, 84, 84), (210, 160, 3)])
def test_a_picture_of_many_pixels_is_predicted_as_a_small_one(shape: tuple[int, ...]) -> None:
    prediction = Prediction(ArraySpec(shape, scale=1 / 255), 4, 8)
    channels = min(shape)
    gray = torch.arange(1.0, channels + 1).reshape((channels, 1, 1) if shape[0] == channels else (channels,))
    seen = (51 * gray / channels).expand(2, 3, *shape)
    prediction.moments.deviation.fill_(51.0)
    answer = (torch.arange(1.0, channels + 1) / channels).repeat_interleave(20 * 20)
    silent(prediction, answer)
    assert prediction(torch.zeros(2, 3, 4), seen).max().item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("shape", "numbers"),
    [
        ((64, 64), 4096),
        ((64, 64, 1), 4096),
        ((4097,), 4096),
        ((64, 65, 1), 400),
        ((4, 12, 140), 4096),
        ((70, 90), 4096),
    ],
)
def test_of_many_numbers_averages_are_predicted(shape: tuple[int, ...], numbers: int) -> None:
    prediction = Prediction(ArraySpec(shape, scale=1 / 255), 4, 8)
    silent(prediction, torch.full((numbers,), 3.0))
    assert not prediction(torch.zeros(1, 2, 4), torch.full((1, 2, *shape), 3, dtype=torch.uint8)).any()


def alternating(agent: Agent, steps: int, batch: int) -> Unroll:
    """Observations of two bits that come by turns; of the next one only the memory of the last but one tells.

    Episodes end at random, and what follows an end is noise.
    """
    pair = torch.randint(2, (2, batch, 2))
    observation = pair[torch.arange(steps + 1) % 2].float()
    over = torch.rand(steps + 1, batch) < 0.1
    for env in range(batch):
        for step in range(1, steps + 1):
            if over[step - 1, env]:
                fresh = torch.randint(2, (2, 2)).float()
                count = torch.arange(steps + 1 - step) % 2
                observation[step:, env] = fresh[count]
    never = torch.zeros_like(over)
    env = EnvOutput(observation, torch.zeros(over.shape), over, never)
    action = torch.randint(2, (steps, batch))
    behavior = AgentOutput(action, torch.zeros(steps, batch, 2), torch.zeros(steps, batch))
    version, episodes = torch.zeros(batch, dtype=torch.int64), torch.zeros(0, 3)
    return Unroll(agent.initial_state(batch), env, behavior, version, 0, 0, episodes, 0.0)


def made(prediction_size: int, prediction_cost: float = 1.0) -> Learner:
    torch.manual_seed(0)
    config = AgentConfig(core="gru", core_args={"hidden_size": 16}, prediction_size=prediction_size)
    agent = Agent(ArraySpec((2,)), ACTIONS, config)
    if agent.prediction is not None:
        agent.prediction.moments.weight.fill_(1.0)  # in units of 1 around 0
    learner = LearnerConfig(algorithm="a2c", lr=1e-2, lr_schedule="constant", prediction_cost=prediction_cost)
    return Learner(agent, learner, 10**9)


def test_the_steps_at_which_episodes_end_do_not_count() -> None:
    learner = made(8)
    batch = alternating(learner.agent, 12, 6)
    out = learner.agent.unroll(batch.env, batch.agent.action, batch.initial_state)
    assert out.prediction is not None
    valid = ~batch.env.terminated[:-1]
    assert not valid.all()
    expected = out.prediction[valid].mean().item()
    assert learner.step(batch)["loss/prediction"] == pytest.approx(expected, rel=1e-5)


def test_each_step_predicts_the_observation_after_it_from_its_own_action() -> None:
    agent = made(8).agent
    batch = alternating(agent, 12, 6)
    assert agent.prediction is not None

    def predicted(batch: Unroll) -> torch.Tensor:
        found = agent.unroll(batch.env, batch.agent.action, batch.initial_state).prediction
        assert found is not None
        return found.detach()

    other = batch.agent.action.clone()
    other[4, 2] = 1 - other[4, 2]
    changed = predicted(batch) != predicted(batch._replace(agent=batch.agent._replace(action=other)))
    assert changed.nonzero().tolist() == [[4, 2]]
    silent(agent.prediction, torch.tensor([1.0, 0.0]))
    error = 0.5 * (torch.tensor([1.0, 0.0]) - batch.env.observation[1:]).square().mean(-1)
    torch.testing.assert_close(predicted(batch), error)


def test_a_step_limit_ends_an_episode_as_well() -> None:
    learner = made(8)
    batch = alternating(learner.agent, 12, 6)
    ended, cut = batch.env.terminated, torch.zeros_like(batch.env.terminated)
    cut[4, 1] = True
    other = batch._replace(env=batch.env._replace(truncated=cut))
    out = learner.agent.unroll(other.env, other.agent.action, other.initial_state)
    assert out.prediction is not None
    expected = out.prediction[~(ended | cut)[:-1]].mean().item()
    assert learner.step(other)["loss/prediction"] == pytest.approx(expected, rel=1e-5)


def test_bfloat16_predicts_nearly_the_same() -> None:
    one, other = made(8), made(8)
    batch = alternating(one.agent, 12, 6)
    exact = one.step(batch)["loss/prediction"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = other.step(batch)["loss/prediction"]
    assert exact != rounded
    assert rounded == pytest.approx(exact, rel=0.05)


def test_nothing_is_predicted_where_nothing_is_learned() -> None:
    agent = made(8).agent
    batch = alternating(agent, 12, 6)
    with torch.no_grad():
        assert agent.unroll(batch.env, batch.agent.action, batch.initial_state).prediction is None


def test_the_cost_weighs_the_loss() -> None:
    one, three = made(8), made(8, prediction_cost=3.0)
    batch = alternating(one.agent, 12, 6)
    found, weighed = one.step(batch), three.step(batch)
    assert weighed["loss/prediction"] == pytest.approx(3 * found["loss/prediction"])
    rest = found["loss/total"] - found["loss/prediction"]
    assert weighed["loss/total"] == pytest.approx(rest + weighed["loss/prediction"], rel=1e-5)


def test_without_a_size_nothing_is_predicted() -> None:
    learner = made(0)
    assert learner.agent.prediction is None
    assert learner.step(alternating(learner.agent, 12, 6))["loss/prediction"] == 0
    assert not any(name.startswith("prediction") for name in learner.agent.state_dict())


@pytest.mark.integration
def test_the_memory_learns_from_it_without_any_reward() -> None:
    learner = made(16)
    losses = [learner.step(alternating(learner.agent, 20, 32))["loss/prediction"] for _ in range(250)]
    # Without memory every bit is a guess, 0.5; with it only the first two of an episode are.
    assert min(losses[1:6]) > 0.4
    assert sum(losses[-20:]) / 20 < 0.2


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="prediction_size is -1; allowed: "):
        AgentConfig(prediction_size=-1)


def rewarding(agent: Agent) -> Unroll:
    """Unrolls whose rewards are now and then 1."""
    batch = alternating(agent, 12, 6)
    return batch._replace(env=batch.env._replace(reward=(torch.rand(13, 6) < 0.3).float()))


def predicts_rewards() -> Learner:
    torch.manual_seed(0)
    config = AgentConfig(core="gru", core_args={"hidden_size": 16}, prediction_size=8, predict="reward")
    learner = LearnerConfig(algorithm="a2c", lr=1e-2, lr_schedule="constant", value_cost=0.0, entropy_cost=0.0)
    return Learner(Agent(ArraySpec((2,)), ACTIONS, config), learner, 10**9)


def test_each_step_predicts_the_reward_of_its_own_action() -> None:
    agent = predicts_rewards().agent
    batch = rewarding(agent)
    assert agent.prediction is not None
    silent(agent.prediction, torch.tensor([0.25]))
    found = agent.unroll(batch.env, batch.agent.action, batch.initial_state).prediction
    assert found is not None
    torch.testing.assert_close(found, 0.5 * (0.25 - batch.env.reward[1:]).square())


def test_rewards_are_predicted_in_their_running_units() -> None:
    agent = predicts_rewards().agent
    batch = rewarding(agent)
    assert agent.prediction is not None
    agent.observe(batch.env)
    rewards = batch.env.reward
    torch.testing.assert_close(agent.prediction.moments.mean, rewards.mean().view(1))
    torch.testing.assert_close(agent.prediction.moments.deviation, rewards.std(correction=0).view(1))


@pytest.mark.integration
def test_the_memory_learns_which_action_is_rewarded() -> None:
    """The observation of two steps ago determines the action."""
    learner = predicts_rewards()
    losses = []
    for _ in range(400):
        batch = alternating(learner.agent, 12, 16)
        seen = torch.cat([batch.env.observation[:1], batch.env.observation[:-2]])[..., 0]
        batch.env.reward[1:] = (batch.agent.action == seen).float()
        losses.append(learner.step(batch)["loss/prediction"])
    assert sum(losses[:10]) / 10 > 0.4
    assert sum(losses[-10:]) / 10 < 0.2
