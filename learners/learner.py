"""The learner: updates of the agent from one batch of unrolls, by whichever algorithm is configured.

Between the arrival of a batch and the reading of metrics nothing waits for the device: how many steps a batch is worth
is counted where it comes from, an update that is not finite is left out on the device, and metrics wait there.
"""

import copy
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..actors.unroll import Unroll
from ..agents.agent import Agent
from ..agents.cores.core import readable
from ..agents.unrolling.compiled import compile_steps
from .algorithms.algorithm import Targets
from .batches import Updates, cause_of, learned_rewards, means, some_of, valid_steps, with_bonus
from .config import LearnerConfig
from .device.cuda_graph import Recorded, changing, cuda_graph
from .device.precision import matrix_precision
from .device.transfer import Transfer
from .group import Group
from .loss import ALONE, CAUSES, KL, METRICS, Gradient, Minibatch, evaluate, gradient, rescaled
from .optimizers import clip_global_norm, make_optimizer, scheduled, set_gradients, set_hyperparameters
from .replay import Replay

_IN_OPTIMIZER = {"eps": "eps", "rmsprop_decay": "decay", "rmsprop_momentum": "momentum"}
"""Settings that the optimizer holds, by its own names; besides them the learning rate and Adam's betas."""

ADAM_BETA2 = 0.999
"""Adam's decay of squared gradients."""


MADE, LEFT_OUT, NOT_TRIED = 1.0, 2.0, 3.0
"""Codes of an update: it changed the weights; its divergence is above the algorithm's `target_kl`; it follows such a
one."""


class Unread(NamedTuple):
    """Results on the device of a batch that was learned from."""

    updates: Tensor
    """float [U, M + 2], a row for each update: metrics, the gradient's norm, and MADE, LEFT_OUT or NOT_TRIED; or what
    was not finite, as the index in CAUSES, negative."""
    names: tuple[str, ...]
    lr: float


class Learner:
    """Holds an agent and its optimizer; `step` learns from one batch.

    Args:
        agent: the network, on the device it shall learn on.
        config: the algorithm and its coefficients.
        total_steps: environment steps after which a linear learning rate is zero.
    """

    def __init__(self, agent: Agent, config: LearnerConfig, total_steps: int) -> None:
        self.agent, self.config, self.total_steps = agent, config, total_steps
        self.device = agent.policy.weight.device
        self.recorded = self._recording() if config.cuda_graph else None
        self.optimizer = make_optimizer(
            config.optimizer,
            agent.parameters(),
            lr=config.lr,
            eps=config.eps,
            decay=config.rmsprop_decay,
            momentum=config.rmsprop_momentum,
            betas=(config.adam_beta1, ADAM_BETA2),
            recorded=self.recorded is not None,
        )
        self.updates = 0
        """Batches learned from; each makes a new version of the weights."""
        self.steps = 0
        """Environment steps consumed."""
        self._skipped = 0
        self.cause: str | None = None
        """Cause of the newest skipped update, one of CAUSES, as far as metrics were read."""
        self._unread: list[Unread] = []
        self._read: list[dict[str, float]] = []
        self.replay = Replay()
        self._transfer = None if self.device.type == "cpu" else Transfer(self.device)
        self._entropy_share: float | Tensor = 1.0
        self._lr: float | Tensor = config.lr
        if self.recorded is not None:  # numbers that change from update to update are read from the device
            self._entropy_share, self._lr = torch.ones(2, device=self.device).unbind()
        self._first_returns = self._no_returns()
        """Whether running units begin with the next batch."""
        self._unobserved = agent.unobserved
        """Whether running moments of the inputs begin with the next batch."""
        self.group = ALONE
        if config.compile:
            compile_steps(agent.core)
        self._use_config()

    def join(self, group: Group) -> None:
        """Learn from a share of every batch from now on, along with the other learners of the group."""
        self.group.close()
        self.group = group
        group.share_sums(self.agent)
        if self.recorded is not None and group.size > 1:
            self.recorded = None
            print("engram: learners that exchange gradients record no CUDA graph", file=sys.stderr)

    @property
    def skipped(self) -> int:
        """Updates left out because the loss or its gradient was not finite; waits for the device."""
        self._fetch()
        return self._skipped

    def step(self, batch: Unroll) -> dict[str, float]:
        """Learn from a batch [T, B]: the metrics of METRICS, of the algorithm and `learner/…`; counts its steps."""
        self.learn(batch)
        return self.read()[-1]

    def learn(self, batch: Unroll) -> None:
        """As `step`, but the metrics wait on the device for `read`."""
        arrived, indices = self.receive(batch)
        self.count(batch, (self.recorded or self._learn)(arrived, indices))

    def receive(self, batch: Unroll) -> tuple[Unroll, list[Tensor]]:
        """The batch to learn from next, with replayed unrolls, and the environments of each update, on the device."""
        if self.config.replay_ratio:
            batch = self.replay.mix(batch, self.config, self.updates)
        self._lr_used = self._use_config()
        orders = self._orders(batch)
        bonus = scheduled("linear", self.config.novelty_bonus, self.steps, self.total_steps)
        here = (batch, orders) if self._transfer is None else self._transfer.receive(batch, orders)
        return with_bonus(here[0], bonus), here[1]

    def count(self, batch: Unroll, updates: Tensor) -> None:
        """Note that a batch was learned from, with `updates` as `Unread` has them."""
        names = (*METRICS, *self.config.method.metrics, "learner/grad_norm")
        self._unread.append(Unread(updates, names, self._lr_used))
        self.updates += 1
        (steps,) = self.group.total(float(valid_steps(batch)))
        self.steps += int(steps)

    def send(self, batch: Unroll) -> None:
        """Let the batch that `learn` will be given next set out for the device, while the last one is learned from."""
        if self._transfer is not None and not self.config.replay_ratio:  # what is replayed is chosen on arrival
            self._transfer.send(batch, self._orders(batch))

    def read(self) -> list[dict[str, float]]:
        """Metrics of every batch since the last call, in order; waits for the device."""
        self._fetch()
        found, self._read = self._read, []
        return found

    def _fetch(self) -> None:
        """Bring what is unread from the device, in one piece."""
        if not self._unread:
            return
        numbers = iter(torch.cat([each.updates.flatten() for each in self._unread]).cpu().tolist())
        for each in self._unread:
            rows = [[next(numbers) for _ in range(len(each.names) + 1)] for _ in range(len(each.updates))]
            codes = [row.pop() for row in rows]
            for code in codes:
                self._skipped += code <= 0
                self.cause = self.cause if code > 0 else CAUSES[-int(code)]
            tried = [row for row, code in zip(rows, codes, strict=True) if code != NOT_TRIED]
            limit = {"learner/kl_stop": float(LEFT_OUT in codes)} if self.config.method.target_kl else {}
            self._read.append(
                dict(zip(each.names, means(tried), strict=True))
                | limit
                | {"learner/lr": each.lr, "learner/skipped": float(self._skipped)}
                | ({f"learner/skipped_{self.cause}": 1.0} if self.cause in CAUSES[1:] else {})
            )
        self._unread = []

    def _orders(self, batch: Unroll) -> list[Tensor]:
        """The environments of each of the next batch's updates; a single update with all has none."""
        # The order of minibatches is a function of the counters, so that a resumed run draws the same ones.
        generator = torch.Generator().manual_seed(self.updates)
        width = batch.env.reward.shape[1]
        groups = self.config.method.minibatches(self.group.all_environments(width), generator)
        everyone = torch.arange(width)
        return [] if groups == [None] else [everyone if x is None else self.group.share(x, width) for x in groups]

    def _learn(self, batch: Unroll, indices: Sequence[Tensor]) -> Tensor:
        """All updates that the algorithm makes from one batch; the metrics of each, as `Unread` has them."""
        updates = self.prepare(batch)
        for chosen in indices or [slice(None)]:
            minibatch = self.minibatch(updates, chosen)
            self.apply(updates, minibatch, gradient(minibatch))
            if updates.stopped:
                break
        return self.complete(updates)

    def prepare(self, batch: Unroll) -> Updates:
        """Bring running units up to this batch, and compute the targets that all of its updates share."""
        once = self.config.method.targets_once
        # The units of the first batch are those in which it is learned from.
        first, self._unobserved = self._unobserved, False
        if first:
            self.agent.observe(batch.env)
        if self.agent.units is not None:
            final = (batch.env.terminated | batch.env.truncated)[:-1]
            reward = learned_rewards(batch, self.config)
            self.agent.units.measure(reward[1:].flatten(), ~final.flatten())
        fixed = self._fixed_targets(batch) if once or self._first_returns else None
        cause = self.group.least(cause_of(batch))
        return Updates(batch, fixed if once else None, cause, first, cause <= 0)

    def minibatch(self, updates: Updates, chosen: slice | Tensor) -> Minibatch:
        """What the loss of the update from these environments depends on."""
        part, targets = some_of(updates.batch, updates.targets, chosen)
        return Minibatch(self.agent, part, self.config, targets, self._entropy_share, self.group)

    def apply(self, updates: Updates, minibatch: Minibatch, gradient: Gradient) -> None:
        """One update of the weights, unless its loss or gradient is not finite or it is beyond `target_kl`."""
        parameters = list(self.agent.parameters())
        gradients, metrics = self.group.reduce(parameters, gradient.gradients, gradient.metrics)
        set_gradients(parameters, gradients)
        norm = clip_global_norm(parameters, self.config.max_grad_norm or None)
        row = torch.cat([metrics, norm.reshape(1)])
        finite = row.isfinite().all()
        limit, wanted = self.config.method.target_kl, finite
        code = torch.where(finite, MADE, updates.cause)
        if limit:
            within = metrics[KL] <= limit
            code = torch.where(updates.within, torch.where(finite & ~within, LEFT_OUT, code), NOT_TRIED)
            wanted = code == MADE
            updates.within = updates.within & (code < LEFT_OUT)
            updates.stopped = readable(updates.within) and not updates.within
        _step_if(self.optimizer, wanted)
        if minibatch.targets is None and (units := self.agent.units) is not None:
            final = (minibatch.batch.env.terminated | minibatch.batch.env.truncated)[:-1]
            units.renormalize((gradient.returns * units.unit).flatten(), (~final & wanted).flatten())
        updates.rows.append(torch.cat([row, code.reshape(1)]))

    def complete(self, updates: Updates) -> Tensor:
        """Count the batch into the running moments of the inputs; returns the metrics of each update."""
        if not updates.first:
            self.agent.observe(updates.batch.env)
        if self._first_returns:
            self._first_returns = readable(updates.rows[0]) and self._no_returns()
        return torch.stack(updates.rows)

    def _fixed_targets(self, batch: Unroll) -> Targets:
        """Targets of the weights as they are, in units of the returns that they have with this batch counted in."""
        with torch.no_grad(), matrix_precision(self.config.precision, self.device):
            now = evaluate(self.agent, batch, self.config, self.group).now
            targets = self.config.method.targets(now)
            units = self.agent.units
            if units is None:
                return targets
            before = units.unit
            units.renormalize((targets.values * before).flatten(), now.step.valid.flatten())
            return self.config.method.targets(rescaled(now, before / units.unit))

    def _no_returns(self) -> bool:
        """Whether values have running units and no return was counted into them yet."""
        return self.agent.units is not None and self.agent.units.unused

    def _recording(self) -> Recorded | None:
        if self.device.type == "cuda":
            return Recorded(self._learn, lambda: changing(self.agent, self.optimizer), cuda_graph(self.device))
        print(f"engram: there are no CUDA graphs on {self.device}; --cuda-graph changes nothing", file=sys.stderr)
        return None

    def _forget(self) -> None:
        """Tensors or settings that updates use are others now."""
        if self.recorded is not None:
            self.recorded.forget()

    def take_over(self, agent: dict[str, Any], optimizer: dict[str, Any]) -> None:
        """Go on with another learner's weights and optimizer state, but with this one's configuration and counters."""
        self.agent.load_state_dict(agent)
        # Torch would share the moments with whoever made the state.
        self.optimizer.load_state_dict(copy.deepcopy(optimizer))
        self._first_returns, self._unobserved = self._no_returns(), self.agent.unobserved
        self._forget()
        self._use_config()  # the other one's learning rate and epsilon came along with its moments

    def reconfigure(self, config: LearnerConfig) -> None:
        """Learn by `config` from now on; weights and moments stay. Raises ValueError for another optimizer."""
        if config.optimizer != self.config.optimizer:
            raise ValueError(f"optimizer is {config.optimizer!r}; allowed: {self.config.optimizer!r}, as before")
        if config != self.config:
            self._forget()
        self.config = config
        self._use_config()

    def effective(self, setting: str) -> float:
        """A numeric setting as the last update used it, or, before one, as the next one will.

        Where the optimizer has a number of its own, it is that number; the learning rate is given before its schedule.
        """
        group = self.optimizer.param_groups[0]
        if setting == "lr" and not isinstance(group["lr"], Tensor):
            share = self._lr_share(self._scheduled_at)
            return self.config.lr if group["lr"] == self.config.lr * share else group["lr"] / (share or 1.0)
        if setting == "adam_beta1" and "betas" in group:
            return group["betas"][0]
        return group.get(_IN_OPTIMIZER.get(setting, ""), self.config.value(setting))  # a recorded rate is rounded

    def state_dict(self) -> dict[str, Any]:
        """Everything the next update depends on."""
        return {
            "agent": self.agent.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "steps": self.steps,
            "skipped": self.skipped,
        } | ({"replay": self.replay.state_dict()} if self.config.replay_ratio else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.updates, self.steps, self._skipped = state["updates"], state["steps"], state["skipped"]
        self._unread, self._read = [], []
        self.replay.load_state_dict(state.get("replay", []))
        self.take_over(state["agent"], state["optimizer"])

    def _use_config(self) -> float:
        """Give the optimizer the configuration's numbers, as the schedule has them now; returns the learning rate."""
        self._scheduled_at = self.steps
        lr = self.config.lr * self._lr_share(self.steps)
        numbers = {ours: getattr(self.config, name) for name, ours in _IN_OPTIMIZER.items()}
        numbers |= {"betas": (self.config.adam_beta1, ADAM_BETA2)}
        set_hyperparameters(self.optimizer, numbers)
        entropy_share = scheduled(self.config.entropy_schedule, 1.0, self.steps, self.total_steps)
        if isinstance(self._lr, Tensor) and isinstance(self._entropy_share, Tensor):
            self._lr.fill_(lr)
            self._entropy_share.fill_(entropy_share)
        else:
            self._lr, self._entropy_share = lr, entropy_share
        set_hyperparameters(self.optimizer, {"lr": self._lr})
        return lr

    def _lr_share(self, step: int) -> float:
        """The schedule's factor on the learning rate."""
        return scheduled(self.config.lr_schedule, 1.0, step, self.total_steps, self.config.lr_warmup)


def _step_if(optimizer: torch.optim.Optimizer, wanted: Tensor) -> None:
    """One step of an optimizer where `wanted` (a bool scalar) is true; else nothing of it or the weights changes.

    On a device without asking for the answer: the step itself is left out there.
    """
    if readable(wanted):
        if bool(wanted):
            optimizer.step()
        return
    optimizer.found_inf = (~wanted).float()  # pyright: ignore[reportAttributeAccessIssue]
    optimizer.step()
