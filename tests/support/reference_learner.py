"""The reference learner: the update of `engram.learners.learner.Learner`, in the plainest way.

Written for reading, from the papers. It applies the modules of an agent to one step at a time and uses nothing else of
the library: no compiled routes, no threads, no batching over time, no de-duplication of observations, no batched
members; `loss.backward()` and an unfused optimizer. It is slow. Shapes: T steps, B environments.
"""

from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.distributions import kl_divergence

from engram.actors.unroll import Unroll
from engram.agents.agent import Agent
from engram.agents.images import Symbols
from engram.agents.normalization import Moments, RescaledHead
from engram.agents.values import map_leaves
from engram.base import compiled
from engram.learners.config import LearnerConfig
from reference_parts import (
    count,
    distributions,
    environments,
    forward,
    generalized_advantages,
    log_probability,
    prediction_error,
    to_predict,
    vtrace,
)


class ReferenceLearner:
    """As `Learner`, with the same arguments."""

    def __init__(self, agent: Agent, config: LearnerConfig, total_steps: int) -> None:
        self.agent, self.config, self.total_steps = agent, config, total_steps
        self.settings: Any = config.method.settings
        self.steps = self.updates = 0
        self.moments: dict[str, dict[str, Tensor]] = {name: {} for name, _ in agent.named_parameters()}
        """The optimizer's state by parameter."""
        self.adam = torch.optim.Adam(
            agent.parameters(),
            lr=config.lr,
            betas=(config.adam_beta1, 0.999),
            eps=config.eps,
            foreach=False,
            fused=False,
        )

    def step(self, batch: Unroll) -> dict[str, float]:
        """Learn from a batch [T, B]; the means of the metrics over its updates."""
        with mock.patch.object(compiled, "enabled", False):
            rows = self._learn(batch)
        valid = ~(batch.env.terminated | batch.env.truncated)[:-1]
        self.steps += int(valid.sum())
        self.updates += 1
        return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}

    def _learn(self, batch: Unroll) -> list[dict[str, float]]:
        units = self.agent.value if isinstance(self.agent.value, RescaledHead) else None
        once = self.config.algorithm == "ppo"
        first = units is not None and not units.moments.weight
        moments = [each for each in self.agent.modules() if isinstance(each, Moments)]
        unobserved = any(each.floor is None and not each.weight for each in moments)
        if unobserved:  # the units of the first batch are those in which it is learned from
            self._observe(batch)
        if units is not None:
            self._measure(units, batch)
        if units is not None and (once or first):
            self._count_returns(units, batch, self._targets(batch)[0])
        fixed = self._targets(batch) if once else None
        rows: list[dict[str, float]] = []
        for chosen in self._minibatches(batch.env.reward.shape[1]):
            part = environments(batch, chosen)
            targets = (fixed[0][:, chosen], fixed[1][:, chosen]) if fixed else self._targets(part)
            rows.append(self._update(part, *targets))
            if units is not None and not once:
                self._count_returns(units, part, targets[0])
        if not unobserved:
            self._observe(batch)
        return rows

    def _minibatches(self, num_envs: int) -> list[Tensor]:
        """The environments of each update."""
        everyone = torch.arange(num_envs)
        epochs = getattr(self.settings, "epochs", 1)
        groups = min(getattr(self.settings, "minibatches", 1), num_envs)
        if groups == 1:
            return [everyone] * epochs
        generator = torch.Generator().manual_seed(self.updates)
        return [
            part for _ in range(epochs) for part in torch.randperm(num_envs, generator=generator).tensor_split(groups)
        ]

    def _update(self, batch: Unroll, targets: Tensor, advantages: Tensor) -> dict[str, float]:
        """One step of the optimizer; the metrics."""
        config = self.config
        rate = config.lr * self._remaining(config.lr_schedule)
        if config.lr_warmup:
            rate *= min(1.0, (self.steps + 1) / config.lr_warmup)
        for parameter in self.agent.parameters():
            parameter.grad = None
        total, metrics = self._loss(batch, targets, advantages)
        total.backward()
        norm = sum(float(p.grad.square().sum()) for p in self.agent.parameters() if p.grad is not None) ** 0.5
        if config.max_grad_norm and norm > config.max_grad_norm:
            for parameter in self.agent.parameters():
                if parameter.grad is not None:
                    parameter.grad *= config.max_grad_norm / (norm + 1e-6)
        if config.optimizer == "adam":
            self.adam.param_groups[0]["lr"] = rate
            self.adam.step()
        else:
            self._rmsprop(rate)
        return {name: float(value.detach()) for name, value in metrics.items()} | {
            "learner/grad_norm": norm,
            "learner/lr": rate,
        }

    @torch.no_grad()
    def _rmsprop(self, rate: float) -> None:
        """n = decay n + (1 - decay) g^2 from n = 1;  m = momentum m + lr g / sqrt(n + eps);  p = p - m."""
        config = self.config
        for name, p in self.agent.named_parameters():
            if p.grad is None:
                continue
            state = self.moments[name]
            n = state.get("mean_square", torch.ones_like(p))
            m = state.get("momentum", torch.zeros_like(p))
            n = config.rmsprop_decay * n + (1 - config.rmsprop_decay) * p.grad**2
            m = config.rmsprop_momentum * m + rate * p.grad / (n + config.eps).sqrt()
            p -= m
            self.moments[name] = {"mean_square": n} | ({"momentum": m} if config.rmsprop_momentum else {})

    def _remaining(self, schedule: str) -> float:
        return max(0.0, 1 - self.steps / self.total_steps) if schedule == "linear" else 1.0

    def optimizer_state(self) -> dict[str, dict[str, Tensor]]:
        """The optimizer's tensors by the name of their parameter."""
        if self.config.optimizer != "adam":
            return self.moments
        return {name: dict(self.adam.state.get(p, {})) for name, p in self.agent.named_parameters()}

    def _loss(self, batch: Unroll, targets: Tensor, advantages: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """The loss, with gradient, and the metrics. Targets and values are compared in the units of the value head."""
        config, settings = self.config, self.settings
        out = forward(self.agent, batch, config.bptt_length)
        valid = ~(batch.env.terminated | batch.env.truncated)[:-1]
        policy, behavior = distributions(self.agent, out.logits[:-1]), distributions(self.agent, batch.agent.logits)
        log_policy = log_probability(policy, batch.agent.action)[valid]
        log_ratio = log_policy - log_probability(behavior, batch.agent.action)[valid]
        ratio, advantage = log_ratio.exp(), advantages[valid]
        more: dict[str, Tensor] = {}
        if config.algorithm == "ppo":  # Schulman et al. 2017, equation 7
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            policy_loss = -torch.minimum(ratio * advantage, clipped * advantage)
            more["ppo/clip_rate"] = ((ratio - 1).abs() > settings.clip) * 1.0
        elif config.algorithm == "vtrace":  # Espeholt et al. 2018, section 4.2
            if settings.policy_clip:
                moved = advantage.sign() * (ratio.detach() - 1) > settings.policy_clip
                advantage = torch.where(moved, 0.0, advantage)
            policy_loss = -log_policy * advantage
            more["vtrace/rho_mean"] = ratio
            more["vtrace/rho_clip_rate"] = (ratio > (settings.clip_rho or torch.inf)) * 1.0
        else:  # Mnih et al. 2016
            policy_loss = -log_policy * advantage
        if config.imitate:  # the cross entropy with the player's actions is all that is learned from
            actions = batch.env.extras["player"][:-1]
            policy_loss = -log_probability(policy, actions)[valid]
            likeliest = torch.stack([each.probs.argmax(-1) for each in policy], -1)
            agrees = (likeliest == actions.reshape(likeliest.shape)).all(-1)[valid]
            more = {"imitation/agreement": agrees * 1.0}
        unit = self.agent.value.moments.deviation if isinstance(self.agent.value, RescaledHead) else 1.0
        value_loss = 0.5 * ((targets - out.values[:-1]) / unit)[valid] ** 2
        if config.imitate:
            value_loss = torch.zeros_like(log_policy.detach())
        entropy = torch.stack([each.entropy() for each in policy]).sum(0)[valid]
        kl = torch.stack([kl_divergence(b, p) for b, p in zip(behavior, policy, strict=True)]).sum(0)[valid]
        nothing = torch.zeros_like(entropy)
        auxiliary = nothing if out.auxiliary is None else out.auxiliary[:-1][valid]
        prediction = prediction_error(self.agent, out, batch)[valid] if self.agent.prediction else nothing
        scale = 1 / len(entropy) if config.reduction == "mean" else 1.0
        entropy_cost = config.entropy_cost * self._remaining(config.entropy_schedule)
        parts = {
            "loss/policy": scale * policy_loss.sum(),
            "loss/value": scale * config.value_cost * value_loss.sum(),
            "loss/entropy": nothing.sum() if config.imitate else -scale * entropy_cost * entropy.sum(),
            "loss/auxiliary": scale * config.auxiliary_cost * auxiliary.sum(),
            "loss/prediction": scale * config.prediction_cost * prediction.sum(),
        }
        total = sum(parts.values(), torch.zeros(()))
        means = {"policy/entropy": entropy, "policy/kl_behavior": kl, **more}
        return total, {**parts, "loss/total": total, **{name: value.mean() for name, value in means.items()}}

    @torch.no_grad()
    def _targets(self, batch: Unroll) -> tuple[Tensor, Tensor]:
        """Targets of values in units of rewards, advantages in those of the value head; [T, B] each."""
        config, settings, env = self.config, self.settings, batch.env
        out = forward(self.agent, batch, config.bptt_length)
        reward = self._rewards(batch)
        ended = (env.terminated | env.truncated).tolist()
        given = reward.tolist(), out.values.tolist(), ended, env.terminated.tolist(), config.discount
        if config.algorithm == "vtrace":
            policy, behavior = distributions(self.agent, out.logits[:-1]), distributions(self.agent, batch.agent.logits)
            action = batch.agent.action
            ratio = (log_probability(policy, action) - log_probability(behavior, action)).exp().tolist()
            targets, advantages = vtrace(*given, ratio, settings.clip_rho, settings.clip_pg_rho, settings.trace_lambda)
        else:
            targets, advantages = generalized_advantages(*given, settings.gae_lambda)
        targets, advantages = (torch.tensor(x, dtype=reward.dtype) for x in (targets, advantages))
        if isinstance(self.agent.value, RescaledHead):
            advantages = advantages / self.agent.value.moments.deviation
        chosen = advantages[~(env.terminated | env.truncated)[:-1]]
        if config.algorithm == "ppo" and settings.normalize_advantages and len(chosen) > 1:
            deviation = max(float(chosen.std()), settings.advantage_floor, 1e-6 * abs(float(chosen.mean())))
            advantages = (advantages - chosen.mean()) / (deviation or 1.0)
        return targets, advantages

    @torch.no_grad()
    def _count_returns(self, head: RescaledHead, batch: Unroll, returns: Tensor) -> None:
        """PopArt (van Hasselt et al. 2016, equations 5 to 7): new units, and the layer that keeps all values."""
        before, mean = head.moments.deviation.clone(), head.moments.mean.clone()
        valid = ~(batch.env.terminated | batch.env.truncated)[:-1]
        count(head.moments, returns[valid].unsqueeze(1), 1.0)
        head.moments.deviation.clamp_(min=0.01 * (float(head.reward) or 1.0))
        head.weight *= before / head.moments.deviation
        head.bias.copy_((head.bias * before + mean - head.moments.mean) / head.moments.deviation)

    @torch.no_grad()
    def _measure(self, head: RescaledHead, batch: Unroll) -> None:
        """The mean size of rewards other than 0, over 20 batches; the first one is the unit of what came before."""
        valid = ~(batch.env.terminated | batch.env.truncated)[:-1]
        sizes = self._rewards(batch)[1:][valid].abs()
        sizes = sizes[sizes > 0]
        if not len(sizes):
            return
        if head.reward > 0:
            head.reward += (sizes.mean() - head.reward) / 20
        else:
            head.reward.fill_(sizes.mean())
            head.moments.mean *= head.reward
            head.moments.deviation *= head.reward

    def _rewards(self, batch: Unroll) -> Tensor:
        """Rewards [T + 1, B] as they are learned from."""
        clip = self.config.reward_clip
        reward = batch.env.reward.clamp(-clip, clip) if clip else batch.env.reward
        if self.config.novelty_bonus:
            reward = reward + self.config.novelty_bonus * self._remaining("linear") * batch.env.extras["novelty"]
        return reward

    @torch.no_grad()
    def _observe(self, batch: Unroll) -> None:
        """Count rewards, observations and features into the running moments and shares of the network."""
        agent, observation = self.agent, batch.env.observation
        if agent.rewards is not None:
            count(agent.rewards, batch.env.reward.reshape(-1, 1), float(batch.env.reward.numel()))
        if agent.critic is not None:
            told = batch.env.extras["privileged"]
            count(agent.critic.moments, told.flatten(0, 1), float(batch.env.reward.numel()))
        if agent.prediction is not None and agent.config.predict != "map":
            count(agent.prediction.moments, to_predict(agent, batch).flatten(0, 1), float(batch.env.reward.numel()))
        averages = [each for each in agent.torso.modules() if isinstance(each, Moments | Symbols)]
        for module in averages:  # those of features follow those of the observations that they depend on
            seen: list[Tensor] = []
            with module.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0])):
                agent.torso(map_leaves(lambda x: x.flatten(0, 1), observation))
            weight = float(batch.env.reward.numel())
            if isinstance(module, Moments):
                count(module, seen[0].flatten(0, -2), weight)
            elif module.shares is not None:
                kinds = seen[0].long() + 256 * torch.arange(module.channels)
                share = kinds.flatten().bincount(minlength=len(module.shares.share)) / seen[0][..., 0].numel()
                rate = weight / (min(float(module.shares.weight), module.shares.memory - weight) + weight)
                module.shares.share += rate * (share - module.shares.share)
                module.shares.weight.copy_(min(float(module.shares.weight) + weight, module.shares.memory))
