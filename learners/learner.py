"""The learner: updates of the agent from one batch of unrolls, with the configured algorithm.

Between the arrival of a batch and the reading of its metrics, nothing waits for the device: steps are counted on the
CPU, and the device skips a non-finite update and keeps the metrics.
"""

import copy
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..actors.extras import NOVELTY
from ..actors.unroll import Unroll, some_environments
from ..agents.agent import Agent
from ..agents.cores.compiled_steps import compile_steps
from ..agents.cores.core import readable
from ..agents.normalization import share_sums
from .algorithms.algorithm import Targets
from .batches import ALONE, Group, learned_rewards, valid_steps
from .config import LearnerConfig
from .device import Recorded, Transfer, changing, cuda_graph
from .loss import KL, METRICS, Gradient, Minibatch, evaluate, gradient, matrix_precision
from .optimizers import clip_global_norm, make_optimizer, scheduled, set_gradients, set_hyperparameters
from .replay import Replay

ADAM_BETA2 = 0.999  # Adam's decay of squared gradients

SKIPPED, MADE, LEFT_OUT, NOT_TRIED = 0.0, 1.0, 2.0, 3.0
"""Codes of an update: a value was not finite; it changed the weights; its divergence exceeded the algorithm's
`target_kl`; it follows such an update."""


@dataclass
class Updates:
    """Progress of the updates from one batch."""

    batch: Unroll
    targets: Targets | None  # Targets of all updates; None if each update has its own
    first: bool  # Whether running moments of the inputs start with this batch
    within: Tensor  # Whether all updates so far are within the algorithm's `target_kl`
    rows: list[Tensor] = field(default_factory=list[Tensor])  # Metrics, gradient norm and code, float [M + 2] each
    stopped: bool = False  # Whether the remaining updates are skipped


class Learner:
    """An agent, on the device for learning, and its optimizer; `step` learns from one batch. After `total_steps`
    environment steps a linear schedule reaches zero."""

    def __init__(self, agent: Agent, config: LearnerConfig, total_steps: int) -> None:
        self.agent, self.config, self.total_steps = agent, config, total_steps
        self.device = agent.policy.weight.device
        self.recorded: Recorded | None = None
        if config.cuda_graph and self.device.type == "cuda":
            self.recorded = Recorded(self._learn, lambda: changing(agent, self.optimizer), cuda_graph(self.device))
        elif config.cuda_graph:
            print(f"engram: --cuda-graph has no effect on {self.device}", file=sys.stderr)
        options: dict[str, Any] = self._hyperparameters() | {"lr": config.lr, "recorded": self.recorded is not None}
        self.optimizer = make_optimizer(config.optimizer, agent.parameters(), **options)
        self.updates = 0  # Number of batches learned from; each results in a new version of the weights.
        self.steps = 0  # Number of consumed environment steps
        self._skipped = 0
        self._unread: list[tuple[Tensor, float]] = []  # `Updates.rows` of batches, stacked, and learning rates
        self._read: list[dict[str, float]] = []
        self.replay = Replay()
        self._transfer = None if self.device.type == "cpu" else Transfer(self.device)
        self._entropy_share: float | Tensor = 1.0
        self._lr: float | Tensor = config.lr
        if self.recorded:  # values that change between updates are read from the device
            self._entropy_share, self._lr = torch.ones(2, device=self.device).unbind()
        self._first_returns = self._no_returns()  # Whether the return scale starts with the next batch
        self._unobserved = agent.unobserved  # Whether running moments of the inputs begin with the next batch
        self.group = ALONE
        if config.compile:
            compile_steps(agent.core)
        self._use_config()

    def join(self, group: Group) -> None:
        """Learn from a share of every batch from now on, alongside the other learners of the group."""
        self.group.close()
        self.group = group
        share_sums(self.agent, group.total)

    @property
    def skipped(self) -> int:
        """Number of updates skipped because the loss or its gradient was not finite; waits for the device."""
        self._fetch()
        return self._skipped

    def step(self, batch: Unroll) -> dict[str, float]:
        """Learn from a batch [T, B], count its steps and return METRICS, the algorithm's metrics and `learner/…`."""
        self.learn(batch)
        return self.read()[-1]

    def learn(self, batch: Unroll) -> None:
        """Learn like `step`, but leave metrics on the device until `read`."""
        arrived, indices = self.receive(batch)
        self.count(batch, (self.recorded or self._learn)(arrived, indices))

    def receive(self, batch: Unroll) -> tuple[Unroll, list[Tensor]]:
        """Return the batch to learn from (with replayed unrolls) and the environments of each update, on the device."""
        if self.config.replay_ratio:
            batch = self.replay.mix(batch, self.config, self.updates)
        self._lr_used = self._use_config()
        orders = self._orders(batch)
        batch, indices = (batch, orders) if self._transfer is None else self._transfer.receive(batch, orders)
        if (extras := batch.env.extras) and NOVELTY in extras:  # scale it to units of reward
            bonus = scheduled("linear", self.config.novelty_bonus, self.steps, self.total_steps)
            batch = batch._replace(env=batch.env._replace(extras=extras | {NOVELTY: bonus * extras[NOVELTY]}))
        return batch, indices

    def count(self, batch: Unroll, updates: Tensor) -> None:
        """Record a batch that was learned from, with the stacked `Updates.rows`."""
        self._unread.append((updates, self._lr_used))
        self.updates += 1
        (steps,) = self.group.total(float(valid_steps(batch).sum()))
        self.steps += int(steps)

    def send(self, batch: Unroll) -> None:
        """Start copying the batch of the next `learn` to the device while an earlier one is learned from."""
        if self._transfer is not None and not self.config.replay_ratio:  # replayed unrolls are chosen on arrival
            self._transfer.send(batch, self._orders(batch))

    def read(self) -> list[dict[str, float]]:
        """Return metrics of every batch since the last call, in order; waits for the device."""
        self._fetch()
        metrics, self._read = self._read, []
        return metrics

    def _fetch(self) -> None:
        """Copy all unread metrics from the device in one transfer."""
        if not self._unread:
            return
        names = (*METRICS, *self.config.method.metrics, "learner/grad_norm")
        values = iter(torch.cat([updates for updates, _ in self._unread]).cpu().tolist())
        for updates, lr in self._unread:
            rows = [next(values) for _ in updates]
            codes = [row.pop() for row in rows]
            self._skipped += codes.count(SKIPPED)
            tried = [row for row, code in zip(rows, codes, strict=True) if code != NOT_TRIED]
            metrics = dict(zip(names, _means(tried), strict=True))
            if self.config.method.target_kl:
                metrics["learner/kl_stop"] = float(LEFT_OUT in codes)
            self._read.append(metrics | {"learner/lr": lr, "learner/skipped": float(self._skipped)})
        self._unread = []

    def _orders(self, batch: Unroll) -> list[Tensor]:
        """Return the environments of each update from a batch; empty for a single update from all environments."""
        # The order of minibatches depends only on the counters, so a resumed run repeats it.
        generator = torch.Generator().manual_seed(self.updates)
        width = batch.env.reward.shape[1]
        groups = self.config.method.minibatches(self.group.all_environments(width), generator)
        every = torch.arange(width)
        return [] if groups == [None] else [every if x is None else self.group.share(x, width) for x in groups]

    def _learn(self, batch: Unroll, indices: Sequence[Tensor]) -> Tensor:
        """Run all updates from one batch; return their stacked `Updates.rows`."""
        updates = self.prepare(batch)
        for chosen in indices or [slice(None)]:
            minibatch = self.minibatch(updates, chosen)
            self.apply(updates, minibatch, gradient(minibatch))
            if updates.stopped:
                break
        return self.complete(updates)

    def prepare(self, batch: Unroll) -> Updates:
        """Include this batch in the return scale, and compute the targets if all its updates share them."""
        once = self.config.method.targets_once
        # The first batch is normalized by its own moments.
        first, self._unobserved = self._unobserved, False
        if first:
            self.agent.observe(batch.env)
        if self.agent.units is not None:
            rewards = learned_rewards(batch, self.config)[1:]
            self.agent.units.measure(rewards.flatten(), valid_steps(batch).flatten())
        fixed = self._fixed_targets(batch) if once or self._first_returns else None
        return Updates(batch, fixed if once else None, first, within=torch.ones_like(batch.env.terminated[0, 0]))

    def minibatch(self, updates: Updates, chosen: slice | Tensor) -> Minibatch:
        """Return the inputs of the loss for an update from these environments."""
        empty = isinstance(chosen, Tensor) and not len(chosen)
        chosen = slice(0, 1) if empty else chosen
        part, targets = some_environments(updates.batch, chosen), updates.targets
        if empty:  # all environments of this minibatch belong to other learners: none of its steps is valid
            part = part._replace(env=part.env._replace(terminated=torch.ones_like(part.env.terminated)))
        targets = targets and Targets(*(x[:, chosen] for x in targets))
        return Minibatch(self.agent, part, self.config, targets, self._entropy_share, self.group)

    def apply(self, updates: Updates, minibatch: Minibatch, gradient: Gradient) -> None:
        """Update the weights unless the loss or gradient is not finite or the divergence exceeds `target_kl`."""
        parameters = list(self.agent.parameters())
        gradients, metrics = self.group.reduce(parameters, *gradient[:2])
        set_gradients(parameters, gradients)
        norm = clip_global_norm(parameters, self.config.max_grad_norm or None)
        row = torch.cat([metrics, norm.reshape(1)])
        finite = row.isfinite().all()
        limit, valid = self.config.method.target_kl, finite
        code = torch.where(finite, MADE, SKIPPED)
        if limit:
            beyond = finite & ~(metrics[KL] <= limit)
            code = torch.where(updates.within, torch.where(beyond, LEFT_OUT, code), NOT_TRIED)
            valid = code == MADE
            updates.within = updates.within & (code < LEFT_OUT)
            updates.stopped = readable(updates.within) and not updates.within
        if not readable(valid):  # the device skips the step, so that the CPU need not wait for the value
            self.optimizer.found_inf = (~valid).float()  # pyright: ignore[reportAttributeAccessIssue]
            self.optimizer.step()
        elif valid:
            self.optimizer.step()
        if minibatch.targets is None and (units := self.agent.units) is not None:
            counted = valid_steps(minibatch.batch) & valid
            units.renormalize((gradient.returns * units.unit).flatten(), counted.flatten())
        updates.rows.append(torch.cat([row, code.reshape(1)]))

    def complete(self, updates: Updates) -> Tensor:
        """Add the batch to the running moments of the inputs; return the stacked `Updates.rows`."""
        if not updates.first:
            self.agent.observe(updates.batch.env)
        if self._first_returns:
            self._first_returns = readable(updates.rows[0]) and self._no_returns()
        return torch.stack(updates.rows)

    def _fixed_targets(self, batch: Unroll) -> Targets:
        """Compute targets with the current weights, normalized by a return scale that includes this batch."""
        with torch.no_grad(), matrix_precision(self.config.precision, self.device):
            now = evaluate(self.agent, batch, self.config, self.group)
            targets = self.config.method.targets(now)
            units = self.agent.units
            if units is None:
                return targets
            before = units.unit
            units.renormalize((targets.values * before).flatten(), now.step.valid.flatten())
            factor = before / units.unit
            step = now.step._replace(rewards=now.step.rewards * factor)
            now = now._replace(step=step, values=now.values * factor, bootstrap=now.bootstrap * factor)
            return self.config.method.targets(now)

    def _no_returns(self) -> bool:
        """Whether values have a return scale that includes no returns yet."""
        return self.agent.units is not None and self.agent.units.moments.unused

    def take_over(self, agent: dict[str, Any], optimizer: dict[str, Any]) -> None:
        """Copy another learner's weights and optimizer state; configuration and counters are kept. Replay starts empty:
        the recurrent states of earlier unrolls belong to other weights."""
        self.replay = Replay()
        self.agent.load_state_dict(agent)
        # Otherwise torch would share the moments with the learner that they come from.
        self.optimizer.load_state_dict(copy.deepcopy(optimizer))
        self._first_returns, self._unobserved = self._no_returns(), self.agent.unobserved
        if self.recorded:
            self.recorded.forget()
        self._use_config()  # restores the learning rate and epsilon, which were copied with the moments

    def reconfigure(self, config: LearnerConfig) -> None:
        """Learn with `config`, which has the same optimizer, from now on; weights and moments are kept."""
        if self.recorded and config != self.config:
            self.recorded.forget()
        self.config = config
        self._use_config()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on."""
        counts = {"updates": self.updates, "steps": self.steps, "skipped": self.skipped}
        state = {"agent": self.agent.state_dict(), "optimizer": self.optimizer.state_dict()} | counts
        return state | ({"replay": self.replay.state_dict()} if self.config.replay_ratio else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates, self.steps, self._skipped = state["updates"], state["steps"], state["skipped"]
        self._unread, self._read = [], []
        self.take_over(state["agent"], state["optimizer"])
        self.replay.load_state_dict(state.get("replay", []))

    def _use_config(self) -> float:
        """Set the optimizer's hyperparameters according to the current schedules; return the learning rate."""
        config = self.config
        lr = config.lr * scheduled(config.lr_schedule, 1.0, self.steps, self.total_steps, config.lr_warmup)
        entropy_share = scheduled(config.entropy_schedule, 1.0, self.steps, self.total_steps)
        if isinstance(self._lr, Tensor) and isinstance(self._entropy_share, Tensor):
            self._lr.fill_(lr)
            self._entropy_share.fill_(entropy_share)
        else:
            self._lr, self._entropy_share = lr, entropy_share
        set_hyperparameters(self.optimizer, {"lr": self._lr} | self._hyperparameters())
        return lr

    def _hyperparameters(self) -> dict[str, Any]:
        """Settings of the optimizer other than the learning rate; either optimizer ignores those of the other."""
        config, adam = self.config, {"betas": (self.config.adam_beta1, ADAM_BETA2)}
        return {"eps": config.eps, "decay": config.rmsprop_decay, "momentum": config.rmsprop_momentum} | adam


def _means(updates: Sequence[Sequence[float]]) -> list[float]:
    """Mean of each metric over the updates of a batch; with several updates, non-finite values are omitted."""
    if len(updates) == 1:
        return list(updates[0])
    finite = [[value for value in metric if math.isfinite(value)] for metric in zip(*updates, strict=True)]
    return [sum(values) / len(values) if values else math.nan for values in finite]
