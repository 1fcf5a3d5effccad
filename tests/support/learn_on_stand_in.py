"""Learning on a device of its own (stand_in.py), case by case: prints what happened as one JSON object.

Every case learns from the same batches on the CPU and on the device, where nothing may be copied or read between the
arrival of a batch and the reading of its metrics.
"""

import copy
import gc
import inspect
import json
import math
import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from engram.actors.factory import ActorFactory
from engram.actors.unroll import Unroll, some_environments
from engram.actors.vectorized import _Networks
from engram.agents.agent import Agent
from engram.agents.config import AgentConfig, TorsoConfig
from engram.agents.cores import core_names
from engram.agents.cores.lstm import LSTM
from engram.agents.cores.registry import core_parameters
from engram.agents.values import AgentOutput
from engram.launch.api.training import make_learners, make_panel, make_trainer
from engram.launch.config.plain import to_dict
from engram.launch.config.run_config import RunConfig
from engram.launch.runs.directory import RunDirectory
from engram.launch.train.acting import make_pool
from engram.launch.train.trainer import Trainer
from engram.learners import checkpoints
from engram.learners.config import LearnerConfig
from engram.learners.device import WARM_UP, Recorded, changing
from engram.learners.group import NcclGroup
from engram.learners.learner import Learner
from engram.learners.population.config import PopulationConfig, Together
from lazy_gloo import LazyGloo
from small_cores import SMALL
from stand_in import DEVICE, SECOND, StandInError, counts, hazards, learning, use_streams, waits

ENVIRONMENT = {"path_lengths": 1, "num_distractors": 0, "max_steps": 10}


class Peeking(LSTM):
    """Reads a number of a state in its unroll."""

    def unroll(self, inputs, reset, state, bptt_length=None):
        if state.h.sum().item() > 1e9:
            raise OverflowError
        return super().unroll(inputs, reset, state, bptt_length)


class Masking(LSTM):
    """Has shapes that depend on where episodes begin."""

    def unroll(self, inputs, reset, state, bptt_length=None):
        _ = inputs[reset]
        return super().unroll(inputs, reset, state, bptt_length)


class Mixing(LSTM):
    """Makes a tensor on the host."""

    def unroll(self, inputs, reset, state, bptt_length=None):
        return super().unroll(inputs + torch.ones(inputs.shape[-1]), reset, state, bptt_length)


def small(name: str) -> dict[str, Any]:
    return {key: value for key, value in SMALL.items() if key in core_parameters(name)}


def setting(agent: AgentConfig, env: str = "boxworld", updates: int = 3) -> tuple[Agent, list[Unroll]]:
    """A network and batches with ends of episodes in them."""
    args = ENVIRONMENT if env == "boxworld" else {}
    factory = ActorFactory(env=env, env_args=args, agent=agent, num_envs=4, unroll_length=12, seed=2)
    torch.manual_seed(0)
    actor = factory.make_actor(0)
    actor.unroll()
    return factory.make_agent(actor.batch), [actor.unroll() for _ in range(updates)]


class Guarded(Learner):
    """A learner whose updates may copy nothing from or to the device."""

    def _learn(self, batch, indices):
        with learning():
            return super()._learn(batch, indices)


def compare(
    agent: Agent, batches: list[Unroll], config: LearnerConfig, sent: bool = False, acted_on: torch.device | None = None
) -> dict[str, Any]:
    """Learn on both; how far metrics and weights are from each other, and what was copied.

    Observations and actions are on `acted_on`, as those of an actor there.
    """
    plain = Learner(copy.deepcopy(agent), config, 10_000)
    there = Guarded(copy.deepcopy(agent).to(DEVICE), config, 10_000)
    arrived = batches if acted_on is None else [_acted_on(acted_on, batch) for batch in batches]
    before = dict(counts)
    there.learn(arrived[0])
    for batch in arrived[1:]:
        if sent:
            there.send(batch)
        started = counts["operations"]
        there.learn(batch)
    operations = counts["operations"] - started
    copies = counts["in"] - before["in"], counts["out"] - before["out"]
    wanted, found = [plain.step(batch) for batch in batches], there.read()
    far = [
        abs(a[name] - b[name]) / (1e-3 + abs(a[name]))
        for a, b in zip(wanted, found, strict=True)
        for name in a
        if math.isfinite(a[name])
    ]
    pairs = zip(plain.agent.parameters(), there.agent.parameters(), strict=True)
    weights = [(a - b.cpu()).abs().max() for a, b in pairs]
    return {
        "in": copies[0],
        "out": copies[1],
        "operations": operations,
        "updates": len(batches),
        "metrics": max(far),
        "weights": float(max(weights).detach()),
        "skipped": [plain.skipped, there.skipped],
        "steps": [plain.steps, there.steps],
    }


def _acted_on(device: torch.device, batch: Unroll) -> Unroll:
    env = batch.env._replace(observation=batch.env.observation.to(device))
    return batch._replace(env=env, agent=AgentOutput(*(leaf.to(device) for leaf in batch.agent)))


EVEN = LearnerConfig(optimizer="rmsprop_tf", eps=0.1)
"""Steps in proportion to the gradient: Adam's first ones are as long for a gradient that is nothing but rounding."""


def core_case(name: str) -> Callable[[], dict[str, Any]]:
    return lambda: compare(*setting(AgentConfig(core=name, core_args=small(name))), EVEN)


class OnDeviceGloo(LazyGloo):
    """NCCL's place on the stand-in: exchanged tensors are on the device."""

    def alltoall_base(self, received: Any, sent: Any, *arguments: Any) -> Any:
        assert received.device == sent.device == DEVICE
        return super().alltoall_base(received.raw, sent.raw, *arguments)


def two_learners() -> dict[str, Any]:
    """Two learners on the device, each with half of every batch, against one with all of it on the CPU."""
    agent, batches = setting(everything())
    config, store = replace(EVEN, algorithm="ppo"), HashStore()
    alone = Learner(copy.deepcopy(agent), config, 10_000)

    def learn(rank: int) -> Learner:
        learner = Learner(agents[rank], config, 10_000)
        learner.join(NcclGroup(store, rank, [2, 2], DEVICE, make_backend=OnDeviceGloo))
        for batch in batches:
            learner.learn(some_environments(batch, slice(2 * rank, 2 * rank + 2)))
        return learner

    agents = [copy.deepcopy(agent).to(DEVICE) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        learners = list(threads.map(learn, range(2)))
    for batch in batches:
        alone.learn(batch)
    weights = [[p.detach().cpu() for p in each.agent.parameters()] for each in (alone, *learners)]
    for learner in learners:
        learner.group.close()
    return {
        "weights": max(float((a - b).abs().max()) for a, b in zip(*weights[:2], strict=True)),
        "same": all(torch.equal(a, b) for a, b in zip(*weights[1:], strict=True)),
        "updates": [learner.updates for learner in learners],
    }


def refused(core: type) -> dict[str, Any]:
    agent, batches = setting(AgentConfig(core="lstm", core_args=small("lstm")))
    agent.core.__class__ = core
    try:
        compare(agent, batches, LearnerConfig())
    except StandInError as problem:
        return {"refused": str(problem)}
    return {"refused": ""}


def everything() -> AgentConfig:
    """Running means of observations and returns, and every additional input of the core."""
    return AgentConfig(
        core="gru",
        core_args=small("gru"),
        torso=TorsoConfig(
            normalize_observations=True, embedding_size=8, symbol_size=4, balance_symbols=True, normalize_features=True
        ),
        previous_action=True,
        previous_reward=True,
        time_horizon=10,
        normalize_returns=True,
        prediction_size=6,
    )


def broken(optimizer: str) -> dict[str, Any]:
    """The second of three batches has a loss that is not finite, the first one too."""
    agent, batches = setting(AgentConfig(core="lstm", core_args=small("lstm")))
    for number in (0, 1):
        reward = batches[number].env.reward.clone()
        reward[3, 0] = math.nan
        batches[number] = batches[number]._replace(env=batches[number].env._replace(reward=reward))
    return compare(agent, batches, LearnerConfig(optimizer=optimizer, rmsprop_momentum=0.5))  # type: ignore[arg-type]


def recorded() -> dict[str, Any]:
    """A recording that does its work again, from where it was recorded, stands for a CUDA graph."""
    agent, batches = setting(AgentConfig(core="lstm", core_args=small("lstm")), updates=WARM_UP + 3)
    plain, there = (Guarded(copy.deepcopy(agent).to(DEVICE), LearnerConfig(), 10_000) for _ in range(2))
    replays = 0

    def record(work):
        result = torch.zeros(1, 12, device=DEVICE)

        def replay():
            nonlocal replays
            replays += 1
            result.copy_(work())

        return replay, result

    there.recorded = Recorded(there._learn, lambda: changing(there.agent, there.optimizer), record)
    rows = [[learner.step(batch) for batch in batches] for learner in (plain, there)]
    same = all(
        torch.equal(a.cpu(), b.cpu()) for a, b in zip(plain.agent.parameters(), there.agent.parameters(), strict=True)
    )
    return {"replays": replays, "same": same and rows[0] == rows[1]}


def flags() -> dict[str, Any]:
    """Precision flags in the forward and the backward pass, and after the update, as the process had set them."""
    places = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    found: dict[str, Any] = {}
    for own, precision in (("tf32", "float32"), ("ieee", "tf32")):
        agent, batches = setting(AgentConfig(core="lstm", core_args=small("lstm")), updates=1)
        learner = Learner(agent.to(DEVICE), LearnerConfig(precision=precision), 10_000)
        seen: list[list[str]] = []

        def note(*_: Any, seen: list[list[str]] = seen) -> None:
            seen.append([place.fp32_precision for place in places])

        def note_both(_: Any, __: Any, output: torch.Tensor, note: Callable[..., None] = note) -> None:
            note()
            output.register_hook(note)

        for place in places:
            place.fp32_precision = own
        learner.agent.policy.register_forward_hook(note_both)
        learner.step(batches[0])
        note()
        found[precision] = seen
    for place in places:
        place.fp32_precision = "none"
    return found


def trainer_of(config: RunConfig, path: Path, files: ExitStack, factory: ActorFactory | None = None) -> Trainer:
    factory = factory or config.factory()
    batch = factory.make_batch()
    agents = []
    for member in range(config.num_members):
        torch.manual_seed(member)
        agents.append(factory.make_agent(batch).to(DEVICE))
    pool = make_pool(config, factory, print)
    directory = files.enter_context(RunDirectory.create(str(path), to_dict(config), name="run"))
    panel = make_panel(config, path, 0)
    learners = make_learners(config, agents)
    trainer = make_trainer(config, learners, tuple(batch.episode_fields), pool, directory, panel, None, files)
    for member in trainer.members:
        pool.publish(member.weights(pool))
    return trainer


def population(sync: bool, together: Together) -> dict[str, Any]:
    """Two members learn on the device, are saved, and go on elsewhere exactly as they would have here."""
    config = RunConfig(
        env="boxworld",
        env_args=ENVIRONMENT,
        agent=AgentConfig(core="lstm", core_args=small("lstm")),
        population=2,
        pbt=PopulationConfig(together=together),
        local=True,
        sync=sync,
        envs_per_update=4,
        unroll_length=12,
        log_every=150,
        learner=LearnerConfig(lr_schedule="constant"),
    )
    found = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as files:
        trainer = trainer_of(config, Path(folder) / "one", files)
        rounds = 6 if together == "off" else 3
        for _ in range(rounds):
            trainer.update()
        snapshot = trainer.members[0].snapshot(lasting=True)
        trainer.members[1].become(snapshot, {})
        trainer._publish(trainer.members[1])
        trainer.save()
        saved = checkpoints.load(next(iter(sorted((Path(folder) / "one" / "checkpoints").iterdir()))))
        other = trainer_of(config, Path(folder) / "two", files)
        other.load_state(saved)
        for member in other.members:
            other.pool.publish(member.weights(other.pool))
        for each in (trainer, other):
            for _ in range(rounds):
                each.update()
            found.append([[p.cpu() for p in member.learner.agent.parameters()] for member in each.members])
    same = all(torch.equal(a, b) for x, y in zip(*found, strict=True) for a, b in zip(x, y, strict=True))
    return {"same": same, "updates": [member.updates for member in trainer.members]}


def acting(act_on: str, members: int = 1) -> dict[str, Any]:
    """A thread acts on the device with a stream of its own while the learner learns there; the same without streams.

    Weights stay on the device. Only what the learner's thread does waits for all that was started.
    """
    for owner, name in ((Agent, "step"), (_Networks, "step")):  # a tensor subclass cannot be made in inference mode
        setattr(owner, name, torch.no_grad()(inspect.unwrap(getattr(owner, name))))
    config = RunConfig(
        env="boxworld",
        env_args=ENVIRONMENT,
        agent=AgentConfig(core="lstm", core_args=small("lstm")),
        population=members if members > 1 else 0,
        pbt=PopulationConfig(together="on") if members > 1 else PopulationConfig(),
        act_on="cpu",
        sync=True,
        num_actors=2,
        envs_per_actor=2,
        unroll_length=12,
        learner=LearnerConfig(lr_schedule="constant", optimizer="rmsprop_tf", eps=0.1),
    )
    found: list[list[torch.Tensor]] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as files:
        for device in ("cpu", act_on):
            factory = replace(config.factory(), device=device)
            trainer = trainer_of(config, Path(folder) / device.partition(":")[0], files, factory)
            files.callback(trainer.pool.close)
            before, blocked = dict(counts), len(waits)
            for _ in range(4 * members):
                trainer.update()
            copied = counts["out"] - before["out"]
            blocked_by = sorted(set(waits[blocked:]))
            found.append([p.detach().cpu() for member in trainer.members for p in member.learner.agent.parameters()])
        trainer.pool.save()
    gc.collect()
    far = max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))
    actions = 4 * config.num_actors * config.unroll_length * members
    return {"weights": far, "blocked": blocked_by, "hazards": hazards[:3], "copied": copied, "actions": actions}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{f"core {name}": core_case(name) for name in core_names()},
    **{
        f"algorithm {name}": lambda name=name: compare(*setting(everything()), replace(EVEN, algorithm=name))
        for name in ("vtrace", "a2c", "ppo")
    },
    "bptt": lambda: compare(*setting(AgentConfig(core="fwm", core_args=small("fwm"))), LearnerConfig(bptt_length=5)),
    "rmsprop": lambda: compare(
        *setting(AgentConfig(core="lstm", core_args=small("lstm"))),
        LearnerConfig(optimizer="rmsprop_tf", rmsprop_momentum=0.5, eps=0.1, reduction="sum"),
    ),
    "tf32": lambda: compare(
        *setting(AgentConfig(core="lstm", core_args=small("lstm"))), LearnerConfig(precision="tf32")
    ),
    "sent ahead": lambda: compare(
        *setting(AgentConfig(core="lstm", core_args=small("lstm")), updates=5), LearnerConfig(), sent=True
    ),
    "acted here": lambda: compare(
        *setting(AgentConfig(core="lstm", core_args=small("lstm"))), LearnerConfig(), acted_on=DEVICE
    ),
    "acted on another": lambda: compare(
        *setting(AgentConfig(core="lstm", core_args=small("lstm"))), LearnerConfig(), acted_on=SECOND
    ),
    "broken adam": lambda: broken("adam"),
    "broken rmsprop_tf": lambda: broken("rmsprop_tf"),
    "two learners": two_learners,
    "recorded": recorded,
    "population": lambda: population(True, "off"),
    "population together": lambda: population(True, "on"),
    "acting": lambda: acting("standin:0"),
    "acting together": lambda: acting("standin:0", members=2),
    "flags": flags,
    "peeking": lambda: refused(Peeking),
    "masking": lambda: refused(Masking),
    "mixing": lambda: refused(Mixing),
}

if __name__ == "__main__":
    use_streams()
    results: dict[str, Any] = {}
    for case, run in CASES.items():
        if sys.argv[1:] and case not in sys.argv[1:]:
            continue
        try:
            results[case] = run()
        except Exception:
            results[case] = {"error": traceback.format_exc()}
        print(case, file=sys.stderr, flush=True)
    print(json.dumps(results))
