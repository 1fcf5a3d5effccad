"""Values that a custom algorithm reads from a pass and adds to the loss, and PPO's limit on the divergence."""

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from engram.actors.factory import ActorFactory
from engram.actors.unroll import Unroll
from engram.agents.config import AgentConfig
from engram.learners import learner as learner_module
from engram.learners.algorithms.algorithm import Pass, Targets, Terms
from engram.learners.algorithms.ppo import PPO
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner


class Regularized(PPO):
    """PPO with a penalty on the divergence, and on the size of the core's outputs."""

    metrics = (*PPO.metrics, "custom/kl", "custom/entropy")
    seen: ClassVar[list[Pass]] = []

    def terms(self, now: Pass, targets: Targets) -> Terms:
        terms = super().terms(now, targets)
        Regularized.seen.append(now)
        extra = 0.5 * now.kl() + 0.1 * now.features.square().mean(-1)
        return terms._replace(metrics=(*terms.metrics, now.kl().detach(), now.entropy().detach()), extra=extra)


NAME = f"{__name__}:Regularized"


def make(algorithm: str, newest: bool = False, **config: Any) -> tuple[Learner, Unroll]:
    factory = ActorFactory(
        env="cued-catch",
        agent=AgentConfig(core="gru", core_args={"hidden_size": 8}),
        num_envs=6,
        unroll_length=12,
        seed=2,
    )
    torch.manual_seed(0)
    agent = factory.make_agent(factory.make_batch())
    learner = Learner(agent, LearnerConfig(algorithm=algorithm, **config), 10_000)
    actor = factory.make_actor(0)
    if newest:
        actor.agent.load_state_dict(agent.state_dict())
    return learner, actor.unroll()


def weights(learner: Learner) -> Tensor:
    return torch.cat([p.detach().flatten() for p in learner.agent.parameters()])


def test_policies_features_entropy_and_kl_are_those_of_the_network() -> None:
    learner, batch = make(NAME, algorithm_args={"epochs": 1, "minibatches": 1})
    Regularized.seen.clear()
    before = learner.agent.unroll(batch.env, batch.agent.action, batch.initial_state)
    metrics = learner.step(batch)
    (now,) = Regularized.seen
    policy, behavior = Categorical(logits=before.logits[:-1]), Categorical(logits=batch.agent.logits)
    torch.testing.assert_close(now.log_policies, policy.logits)
    torch.testing.assert_close(now.log_behaviors, behavior.logits)
    torch.testing.assert_close(now.entropy(), policy.entropy())
    torch.testing.assert_close(now.kl(), kl_divergence(behavior, policy), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(learner.agent.policy.in_features, now.features.shape[-1])
    valid = now.step.valid
    assert metrics["custom/entropy"] == pytest.approx(policy.entropy()[valid].mean().item(), abs=1e-5)


def test_an_extra_loss_is_part_of_the_total_and_its_gradient_reaches_the_core() -> None:
    """One step of plain gradient descent differs from PPO's by that of the extra loss alone."""
    args = {"algorithm_args": {"epochs": 1, "minibatches": 1}, "max_grad_norm": 0.0}
    (plain, batch), (custom, _) = make("ppo", **args), make(NAME, **args)
    out = plain.agent.unroll(batch.env, batch.agent.action, batch.initial_state)
    valid = ~(batch.env.terminated | batch.env.truncated)[:-1]
    kl = kl_divergence(Categorical(logits=batch.agent.logits), Categorical(logits=out.logits[:-1]))
    extra = (0.5 * kl + 0.1 * out.features[:-1].square().mean(-1))[valid].mean()
    parameters = dict(plain.agent.named_parameters())
    expected = torch.autograd.grad(extra, list(parameters.values()), materialize_grads=True)
    totals = [learner.step(batch)["loss/total"] for learner in (plain, custom)]
    assert totals[1] - totals[0] == pytest.approx(extra.item(), rel=1e-4)
    for (name, p), wanted in zip(parameters.items(), expected, strict=True):
        theirs = custom.agent.get_parameter(name)
        assert p.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(theirs.grad - p.grad, wanted, atol=1e-5, rtol=1e-3, msg=name)


@pytest.mark.integration
@pytest.mark.parametrize("on_device", [False, True])
def test_updates_beyond_the_divergence_are_left_out(on_device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are those after the updates before it; where nothing may wait for the device, too."""
    settings: dict[str, Any] = {"newest": True, "lr": 1e-3, "lr_schedule": "constant", "entropy_cost": 0.0}
    free, batch = make("ppo", **settings, algorithm_args={"epochs": 12, "minibatches": 1})
    divergences, states = [], []
    one, _ = make("ppo", **settings, algorithm_args={"epochs": 1, "minibatches": 1})
    fixed = one._fixed_targets(batch)
    monkeypatch.setattr(one, "_fixed_targets", lambda _: fixed)
    for _ in range(12):
        states.append(weights(one))
        divergences.append(one.step(batch)["policy/kl_behavior"])
    limit = (divergences[2] + divergences[3]) / 2
    assert max(divergences[:3]) < limit < divergences[3]
    free.step(batch)
    stopped, _ = make("ppo", **settings, algorithm_args={"epochs": 12, "minibatches": 1, "target_kl": limit})
    if on_device:
        monkeypatch.setattr(learner_module, "readable", lambda _: False)
    metrics = stopped.step(batch)
    torch.testing.assert_close(weights(stopped), states[3], rtol=0, atol=1e-6)
    assert not torch.allclose(weights(free), states[3], atol=1e-3)
    assert metrics["learner/kl_stop"] == 1
    assert metrics["learner/skipped"] == 0
    assert metrics["policy/kl_behavior"] == pytest.approx(sum(divergences[:4]) / 4, rel=1e-3)


def test_a_setting_that_is_no_divergence_is_refused() -> None:
    with pytest.raises(ValueError, match="target_kl is -1"):
        make("ppo", algorithm_args={"target_kl": -1.0})
