"""Limits of a device, measured, and the demands of acting and learning on it, as JSON.

    python benchmarks/speed/roofline.py [flags of rl-train]

    roof     operations per second of one large product of matrices; bytes per second of one large copy
    demand   floating-point operations of a step's products, and bytes that its operations read and write

Demands are counted on tensors without numbers, over a few steps of a whole batch, by the form that a GPU runs and as if
every operation brought its operands from memory: a compiled route, which keeps them in the processor's caches, and a
torso that is queried distinct observations only, can exceed a roof. Shapes: T steps, B environments.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from engram.agents.agent import Agent
from engram.agents.kernels import linear
from engram.agents.values import EnvOutput, map_leaves
from engram.launch.bench.command import measure, open_parts
from engram.launch.config.run_config import RunConfig, find_device
from engram.launch.config.run_flags import parse_run

SIZES = {"cpu": (1024, 2**24), "cuda": (8192, 2**28)}
"""Rows and columns of the product's factors, and float32 numbers that are copied."""
STEPS = 6
"""Of an unroll that learning is counted on: all of its steps ask the same."""


class Roof(NamedTuple):
    """A device's limits, on one core of a CPU."""

    flops: float
    """Floating-point operations per second."""
    bandwidth: float
    """Bytes per second, read and written."""


class Demand(NamedTuple):
    """Of one environment step."""

    flops: float
    bytes: float


def roofline(config: RunConfig, device: torch.device, seconds: Mapping[str, float], each: float) -> dict[str, Any]:
    """Roofs of the actors' processor and the learner's device, and what parts of the work reach of them, for JSON.

    Args:
        config: the run.
        device: the learner's.
        seconds: per environment step, of "infer" and "learn".
        each: seconds for measuring a device.
    """
    cpu = torch.device("cpu")
    roofs = {name: roof(torch.device(name), each) for name in dict.fromkeys((cpu.type, device.type))}
    result: dict[str, Any] = {"roofs": {name: limits._asdict() for name, limits in roofs.items()}, "parts": {}}
    for name, demand in demands(config).items():
        on = cpu.type if name == "infer" else device.type
        rate = Roof(demand.flops / seconds[name], demand.bytes / seconds[name])
        shares = {f"of_{kind}": round(a / b, 4) for kind, a, b in zip(Roof._fields, rate, roofs[on], strict=True)}
        result["parts"][name] = {"device": on, "demand": demand._asdict()} | rate._asdict() | shares
    return result


def roof(device: torch.device, seconds: float) -> Roof:
    """Measure a device for about so many seconds."""
    size, numbers = SIZES["cpu" if device.type == "cpu" else "cuda"]
    x, y = (torch.randn(size, size, device=device) for _ in range(2))
    a = torch.zeros(numbers, device=device)
    b = torch.empty_like(a)
    with torch.inference_mode():
        product = _shortest(lambda: linear(x, y), seconds / 2, device)
        copied = _shortest(lambda: b.copy_(a), seconds / 2, device)
    return Roof(2 * size**3 / product, 2 * a.nbytes / copied)


def demands(config: RunConfig) -> dict[str, Demand]:
    """Demands of acting ("infer") and learning ("learn") per environment step, for one of the run's networks."""
    factory = config.factory()
    with closing(factory.make_batch(0, 1)) as batch:
        agent = factory.make_agent(batch).to("meta")
        observation = map_leaves(torch.as_tensor, batch.new_observation())
    return {
        "infer": _count(agent, observation, 1, config.actor_envs, learn=False),
        "learn": _count(agent, observation, min(config.unroll_length, STEPS), config.columns, learn=True),
    }


def _count(agent: Agent, observation: Any, steps: int, environments: int, learn: bool) -> Demand:
    """Of one pass over T steps, and its gradient where it is learned from."""
    ended = torch.zeros(steps, environments, dtype=torch.bool, device="meta")
    env = EnvOutput(
        map_leaves(lambda x: x.to("meta").expand(steps, environments, *x.shape[1:]), observation),
        torch.zeros(steps, environments, device="meta"),
        ended,
        ended,
    )
    state = agent.initial_state(environments)
    action = torch.zeros(steps - 1, *state.previous_action.shape, dtype=state.previous_action.dtype, device="meta")
    moved = _Moved()
    with FlopCounterMode(display=False) as products, moved, torch.set_grad_enabled(learn):
        out = agent.unroll(env, action, state)
        if learn:
            total = out.logits.sum() + out.value.sum() + (0 if out.auxiliary is None else out.auxiliary.sum())
            torch.autograd.grad(total, list(agent.parameters()), allow_unused=True)
    each = steps * environments
    return Demand(products.get_total_flops() / each, moved.bytes / each)


class _Moved(TorchDispatchMode):
    """Adds up what operations read and write; views do neither."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = tree_leaves((args, kwargs, result))
            self.bytes += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))
        return result


def _shortest(work: Callable[[], Any], seconds: float, device: torch.device) -> float:
    """Seconds of the fastest of some repetitions, on a CPU of processor time: its core may be shared."""
    best, end = float("inf"), time.perf_counter() + seconds
    work()
    while best == float("inf") or time.perf_counter() < end:
        wall, processor = time.perf_counter(), time.process_time()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spent = (time.process_time() - processor) if device.type == "cpu" else (time.perf_counter() - wall)
        best = min(best, spent)
    return best


def main() -> None:
    """Measure acting and learning with these flags, and print what they reach of the device's limits."""
    config = parse_run(sys.argv[1:])
    device = find_device(config.device)
    with open_parts(config, device) as parts:
        seconds = measure(parts, 3.0, 6)
    print(json.dumps(roofline(config, device, seconds, 3.0), indent=1))


if __name__ == "__main__":
    main()
