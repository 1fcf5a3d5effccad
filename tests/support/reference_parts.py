"""Parts of the reference learner: the network step by step, distributions, running moments, targets as loops.

Shapes: T steps, B environments.
"""

from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Categorical, Normal
from torch.nn import functional

from engram.actors.unroll import Unroll
from engram.agents.agent import Agent
from engram.agents.cores.core import map_state
from engram.agents.normalization import Moments, RescaledHead
from engram.agents.specs import BoxSpec
from engram.agents.values import map_leaves

Loops = list[list[float]]
"""Values [T][B]."""


class Outputs(NamedTuple):
    """The network's outputs at steps 0..T."""

    logits: Tensor
    """[T + 1, B, ...]."""
    values: Tensor
    """[T + 1, B], in units of rewards."""
    cores: Tensor
    """Outputs of the core, [T + 1, B, D]."""
    auxiliary: Tensor | None
    """The core's own loss, [T + 1, B]."""


def environments(batch: Unroll, chosen: Tensor) -> Unroll:
    """Some environments (int64 [K]) of a batch."""
    return batch._replace(
        initial_state=map_leaves(lambda x: x[chosen], batch.initial_state),
        env=map_leaves(lambda x: x[:, chosen], batch.env),
        agent=map_leaves(lambda x: x[:, chosen], batch.agent),
    )


def forward(agent: Agent, batch: Unroll, bptt_length: int) -> Outputs:
    """The network at steps 0..T, one step after the other."""
    config, env = agent.config, batch.env
    state, previous, elapsed, over = batch.initial_state
    outputs: list[tuple[Tensor, Tensor, Tensor]] = []
    losses: list[Tensor] = []
    first = agent.initial_state(len(over))
    for t in range(len(env.reward)):
        if bptt_length and t and t % bptt_length == 0:
            state = map_state(torch.Tensor.detach, state)
        # An episode begins where the step before ended one.
        state = where(over, agent.core.initial_state(len(over)), state)
        previous = where(over, first.previous_action, previous)
        elapsed = where(over, first.elapsed, elapsed)
        features = agent.torso(map_leaves(lambda x, t=t: x[t], env.observation))
        inputs = [features.detach() if config.torso.fixed_features else features]
        if config.previous_action:
            inputs.append(encoded(agent, previous))
        if config.previous_reward:
            inputs.append(previous_reward(agent, env.reward[t].unsqueeze(1)))
        if config.time_horizon:
            inputs.append((elapsed / config.time_horizon).unsqueeze(1))
        output, state = agent.core(torch.cat(inputs, 1), state)
        loss = agent.core.auxiliary_loss(state)
        if loss is not None:
            losses.append(loss)
        logits = agent.policy(output)
        if isinstance(agent.action_spec, BoxSpec):
            logits = torch.cat([logits, agent.log_deviation.clamp(-5.0, 2.0).expand_as(logits)], 1)
        read = output
        if agent.critic is not None:
            known = agent.critic.moments(env.extras["privileged"][t])
            read = torch.cat([output, agent.critic.hidden(torch.cat([output, known], 1)).relu()], 1)
        value = functional.linear(read, agent.value.weight, agent.value.bias)
        if isinstance(agent.value, RescaledHead):
            value = value * agent.value.moments.deviation + agent.value.moments.mean
        outputs.append((logits, value.squeeze(1), output))
        if t < len(batch.agent.action):
            previous, elapsed, over = batch.agent.action[t], elapsed + 1, env.terminated[t] | env.truncated[t]
    logits, values, cores = (torch.stack(each) for each in zip(*outputs, strict=True))
    return Outputs(logits, values, cores, torch.stack(losses) if losses else None)


def where(over: Tensor, new: Any, old: Any) -> Any:
    """`new` where an episode is over, `old` elsewhere, leaf by leaf."""
    return map_leaves(lambda a, b: torch.where(over.reshape(-1, *[1] * (b.dim() - 1)), a, b), new, old)


def previous_reward(agent: Agent, reward: Tensor) -> Tensor:
    """Rewards [B, 1] as inputs: clipped, or sign(x) log(1 + |x|) of x in running units."""
    if agent.rewards is None:
        return reward.clamp(-agent.config.previous_reward_clip, agent.config.previous_reward_clip)
    x = agent.rewards.normalized(reward)
    return x.sign() * (1 + x.abs()).log()


def encoded(agent: Agent, action: Tensor) -> Tensor:
    """An action as inputs: one-hot of each choice (-1: zeros), or a Box's numbers in -1..1."""
    if isinstance(agent.action_spec, BoxSpec):
        return action.clamp(-1, 1)
    sizes = agent.action_spec.choices
    parts = [action] if len(sizes) == 1 else action.unbind(-1)
    hot = [functional.one_hot(part + 1, size + 1)[..., 1:] for part, size in zip(parts, sizes, strict=True)]
    return torch.cat(hot, -1).to(agent.policy.weight)


def distributions(agent: Agent, logits: Tensor) -> list[Any]:
    """The independent distributions of an action's parts."""
    if isinstance(agent.action_spec, BoxSpec):
        mean, log_deviation = logits.chunk(2, -1)
        return [Normal(m, s) for m, s in zip(mean.unbind(-1), log_deviation.exp().unbind(-1), strict=True)]
    ends = list(accumulate(agent.action_spec.choices))
    starts = [0, *ends[:-1]]
    return [Categorical(logits=logits[..., a:b]) for a, b in zip(starts, ends, strict=True)]


def log_probability(parts: list[Any], action: Tensor) -> Tensor:
    """log pi(action), [T, B]; actions are [T, B], or [T, B, K] of K parts."""
    chosen = action.unbind(-1) if action.dim() == 3 else [action]
    return sum((part.log_prob(each) for part, each in zip(parts, chosen, strict=True)), torch.zeros(()))


def to_predict(agent: Agent, batch: Unroll) -> Tensor:
    """Observations [T + 1, B, S], flattened, or rewards [T + 1, B, 1]."""
    if agent.config.predict == "reward":
        return batch.env.reward.unsqueeze(-1)
    return flat(batch.env.observation).to(agent.policy.weight)


def flat(observation: Any) -> Tensor:
    """Observations [T, B, ...] -> [T, B, S], entries of a dict in the order of sorted keys."""
    if isinstance(observation, dict):
        return torch.cat([flat(observation[key]) for key in sorted(observation)], -1)
    return observation.flatten(2)


def prediction_error(agent: Agent, out: Outputs, batch: Unroll) -> Tensor:
    """1/2 mean_S (p - (x - mean) / deviation)^2 of x, the step after, [T, B]; 0 before anything was counted."""
    assert agent.prediction is not None
    if agent.config.predict == "map":
        return map_error(agent, out, batch)
    moments = agent.prediction.moments
    predicted = agent.prediction.layers(torch.cat([out.cores[:-1], encoded(agent, batch.agent.action)], -1))
    error = 0.5 * (predicted - moments(to_predict(agent, batch)[1:])).square().mean(-1)
    return torch.where(moments.weight > 0, error, 0.0)


def map_error(agent: Agent, out: Outputs, batch: Unroll) -> Tensor:
    """Cross entropy of the seen cells of each step's map, [T, B]: the mean over layers of the mean over their cells."""
    head, maps = agent.prediction, batch.env.extras["map"][:-1]
    steps, num_envs, rows, columns, _ = maps.shape
    features = head.layers(out.cores[:-1]).reshape(steps, num_envs, rows * columns, -1)
    losses = torch.zeros(steps, num_envs, dtype=features.dtype)
    for t in range(steps):
        for b in range(num_envs):
            first = 0
            for layer, classes in enumerate(head.spec.classes):
                kinds = maps[t, b, :, :, layer].flatten().tolist()
                terms: list[Tensor] = []
                for cell, kind in enumerate(kinds):
                    if kind:
                        scores = head.classes(features[t, b, cell])[first : first + classes]
                        terms.append(-Categorical(logits=scores).log_prob(torch.tensor(kind - 1)))
                first += classes
                if terms:
                    losses[t, b] = losses[t, b] + sum(terms, torch.zeros(())) / len(terms) / len(head.spec.classes)
    return losses


def count(moments: Moments, values: Tensor, weight: float) -> None:
    """Average values [N, S] into running moments: plainly up to `moments.memory`, then exponentially."""
    rate = weight / (min(float(moments.weight), moments.memory - weight) + weight)
    mean = (1 - rate) * moments.mean + rate * values.mean(0)
    variance = (1 - rate) * (moments.deviation**2 + (moments.mean - mean) ** 2)
    variance = variance + rate * ((values - mean) ** 2).mean(0)
    moments.mean.copy_(mean)
    moments.deviation.copy_(variance.sqrt().clamp(min=moments.floor or 0.0))
    moments.weight.copy_(min(float(moments.weight) + weight, moments.memory))


def vtrace(
    rewards: Loops,
    values: Loops,
    ended: list[list[bool]],
    terminated: list[list[bool]],
    discount: float,
    ratio: Loops,
    clip_rho: float,
    clip_pg_rho: float,
    trace_lambda: float,
) -> tuple[Loops, Loops]:
    """V-trace targets and advantages (Espeholt et al. 2018, equation 1, remarks 1 and 2); a clip of 0 is none.

    vs_t = V_t + min(rho_bar, rho_t) (r_t + g V_{t+1} - V_t) + g lambda min(1, rho_t) (vs_{t+1} - V_{t+1})
    adv_t = min(rho_pg, rho_t) (r_t + g vs_{t+1} - V_t)

    Step t shows r_{t-1}. g is 0 where step t + 1 terminates the episode. The action at an episode's last step does
    nothing: there vs = V, which ends the trace.
    """
    targets, advantages = [list(row) for row in values], [[0.0] * len(row) for row in values[:-1]]
    for b in range(len(values[0])):
        for t in reversed(range(len(values) - 1)):
            if ended[t][b]:
                continue
            g = 0.0 if terminated[t + 1][b] else discount
            rho, reward, value, following = ratio[t][b], rewards[t + 1][b], values[t][b], values[t + 1][b]
            delta = min(clip_rho or rho, rho) * (reward + g * following - value)
            trace = g * trace_lambda * min(1.0, rho) * (targets[t + 1][b] - following)
            targets[t][b] = value + delta + trace
            advantages[t][b] = min(clip_pg_rho or rho, rho) * (reward + g * targets[t + 1][b] - value)
    return targets[:-1], advantages


def generalized_advantages(
    rewards: Loops,
    values: Loops,
    ended: list[list[bool]],
    terminated: list[list[bool]],
    discount: float,
    gae_lambda: float,
) -> tuple[Loops, Loops]:
    """Lambda-returns and advantages (Schulman et al. 2016, equation 16), lambda 1: n-step returns (Mnih et al. 2016).

    A_t = r_t + g V_{t+1} - V_t + g lambda A_{t+1},   R_t = A_t + V_t;   g, r and the ends of episodes as in `vtrace`
    """
    targets, advantages = [list(row) for row in values[:-1]], [[0.0] * len(row) for row in values]
    for b in range(len(values[0])):
        for t in reversed(range(len(values) - 1)):
            if ended[t][b]:
                continue
            g = 0.0 if terminated[t + 1][b] else discount
            delta = rewards[t + 1][b] + g * values[t + 1][b] - values[t][b]
            advantages[t][b] = delta + g * gae_lambda * advantages[t + 1][b]
            targets[t][b] = advantages[t][b] + values[t][b]
    return targets, advantages[:-1]
