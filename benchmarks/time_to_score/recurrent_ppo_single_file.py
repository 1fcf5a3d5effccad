"""Recurrent PPO as CleanRL's single files have it: a re-implementation for comparison, not their code.

Settings of their Atari LSTM script: 8 environments, 128 steps per rollout, 4 epochs of 4 minibatches of whole
environments, Adam with epsilon 1e-5 and a rate that falls linearly, GAE of .95, clipping of .1 for ratios and values,
entropy cost .01, value cost .5, gradient norm .5, advantages normalized per minibatch, orthogonal initialization. The
network is that of the comparison: our torso, one LSTM of 256, a linear policy and a linear value. A truncated episode
counts as terminated, as there.
"""

from collections.abc import Callable
from typing import Any

import torch
from peers import Envs
from torch import Tensor, nn

ROLLOUT, EPOCHS, MINIBATCHES = 128, 4, 4
DISCOUNT, TRACE, CLIP, ENTROPY_COST, VALUE_COST, MAX_NORM = 0.99, 0.95, 0.1, 0.01, 0.5, 0.5


class Network(nn.Module):
    """Torso, LSTM, policy and value."""

    def __init__(self, torso: nn.Module, num_actions: int) -> None:
        super().__init__()
        self.torso: Any = torso
        self.lstm = nn.LSTM(int(self.torso.output_size), 256)
        for name, weight in self.lstm.named_parameters():
            nn.init.constant_(weight, 0) if "bias" in name else nn.init.orthogonal_(weight, 1.0)
        self.policy, self.value = nn.Linear(256, num_actions), nn.Linear(256, 1)
        nn.init.orthogonal_(self.policy.weight, 0.01)
        nn.init.orthogonal_(self.value.weight, 1.0)
        nn.init.zeros_(self.policy.bias)
        nn.init.zeros_(self.value.bias)

    def forward(self, observation: Tensor, begins: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Any]:
        """seen [T, B, ...], begins [T, B], (h, c) [1, B, 256] -> logits [T, B, A], values [T, B], the last (h, c)."""
        inputs = self.torso(observation.flatten(0, 1)).unflatten(0, observation.shape[:2])
        outputs: list[Tensor] = []
        for step, begin in zip(inputs, begins, strict=True):
            continues = (~begin).float()[None, :, None]
            output, state = self.lstm(step[None], (continues * state[0], continues * state[1]))
            outputs.append(output)
        hidden = torch.cat(outputs)
        return self.policy(hidden), self.value(hidden).squeeze(-1), state


def train(envs: Envs, num_envs: int, lr: float, total_steps: int, seed: int, stop: Callable[[], bool]) -> None:
    """Train until `stop()`."""
    torch.manual_seed(seed)
    observation = torch.from_numpy(envs.start(num_envs, seed))
    network = Network(envs.torso(), envs.num_actions)
    optimizer = torch.optim.Adam(network.parameters(), lr=lr, eps=1e-5)
    begin = torch.ones(num_envs, dtype=torch.bool)
    state = (torch.zeros(1, num_envs, 256), torch.zeros(1, num_envs, 256))
    updates = total_steps // (num_envs * ROLLOUT)
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = lr * (1 - update / updates)
        first = (state[0].clone(), state[1].clone())
        rows: dict[str, list[Tensor]] = {
            name: [] for name in ("seen", "begin", "action", "logp", "value", "reward", "over")
        }
        for _ in range(ROLLOUT):
            inputs = observation
            with torch.no_grad():
                logits, value, state = network(inputs[None], begin[None], state)
            policy = torch.distributions.Categorical(logits=logits[0])
            action = policy.sample()
            after, _, *outcome = envs.step(action.numpy())
            reward, terminated, truncated = map(torch.from_numpy, outcome)
            over = terminated | truncated
            values = (inputs, begin, action, policy.log_prob(action), value[0], reward, over)
            for name, each in zip(rows, values, strict=True):
                rows[name].append(each)
            observation, begin = torch.from_numpy(after), over
            if stop():
                return
        with torch.no_grad():
            _, bootstrap, _ = network(observation[None], begin[None], state)
        _learn(network, optimizer, {name: torch.stack(each) for name, each in rows.items()}, first, bootstrap[0])


def _learn(
    network: Network, optimizer: torch.optim.Optimizer, data: dict[str, Tensor], first: Any, bootstrap: Tensor
) -> None:
    values, over = data["value"], data["over"].float()
    advantages, running = torch.zeros_like(values), torch.zeros_like(bootstrap)
    for t in reversed(range(ROLLOUT)):
        later = bootstrap if t == ROLLOUT - 1 else values[t + 1]
        error = data["reward"][t] + DISCOUNT * later * (1 - over[t]) - values[t]
        advantages[t] = running = error + DISCOUNT * TRACE * (1 - over[t]) * running
    returns = advantages + values
    num_envs = values.shape[1]
    for _ in range(EPOCHS):
        for chosen in torch.randperm(num_envs).chunk(MINIBATCHES):
            logits, value, _ = network(
                data["seen"][:, chosen], data["begin"][:, chosen], (first[0][:, chosen], first[1][:, chosen])
            )
            policy = torch.distributions.Categorical(logits=logits)
            ratio = (policy.log_prob(data["action"][:, chosen]) - data["logp"][:, chosen]).exp()
            gain = advantages[:, chosen]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            surrogate = torch.min(gain * ratio, gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            old, aim = values[:, chosen], returns[:, chosen]
            clipped = old + (value - old).clamp(-CLIP, CLIP)
            value_loss = 0.5 * torch.max((value - aim).square(), (clipped - aim).square()).mean()
            loss = -surrogate + VALUE_COST * value_loss - ENTROPY_COST * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)
            optimizer.step()
