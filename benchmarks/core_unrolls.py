"""CPU time of an unroll and its gradient against the plain loop over steps, for every core that is linear in time.

    python benchmarks/core_unrolls.py

T = 300 steps, B = 32 environments, 64 inputs, a reset at 1% of the steps, default sizes, one thread; the best of three
runs of each, in turns. Both multiply with the same weights: `weights_ms` is the time of those multiplications and their
gradients alone, over all steps at once, so loop_ms / weights_ms bounds the ratio. Writes results/core-unrolls.json.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engram.agents.cores import make_core
from engram.agents.cores.core import unroll_step_by_step
from engram.launch.metrics.provenance import provenance

STEPS, ENVS, INPUTS = 300, 32, 64
CORES: list[tuple[str, dict[str, Any]]] = [
    ("delta-net", {}),
    ("delta-net", {"gated": True}),
    ("delta-net", {"num_writes": 2}),
    ("mamba2", {}),
    ("mamba2", {"s6": True}),
    *((name, {}) for name in ("mlstm", "s5", "shm", "agalite", "rtu", "lru", "min-gru", "ffm")),
]


def cpu_seconds(work: Callable[[], Any]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def multiply(core: torch.nn.Module) -> None:
    """Multiply every weight matrix by all T B inputs, and compute the gradients of both."""
    for weight in core.parameters():
        if weight.dim() == 2 and min(weight.shape) > 1:
            x = torch.ones(STEPS * ENVS, weight.shape[1], requires_grad=True)
            torch.nn.functional.linear(x, weight).sum().backward()


def measured(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """CPU milliseconds of unroll and loop, and their ratio."""
    torch.manual_seed(0)
    core = make_core(name, INPUTS, **options)
    inputs, reset = torch.randn(STEPS, ENVS, INPUTS), torch.rand(STEPS, ENVS) < 0.01
    times: dict[str, list[float]] = {"unroll": [], "loop": [], "weights": []}
    for _ in range(3):
        for way, run in (("unroll", type(core).unroll), ("loop", unroll_step_by_step)):
            work = lambda run=run: run(core, inputs, reset, core.initial_state(ENVS))[0].sum().backward()  # noqa: E731
            times[way].append(cpu_seconds(work))
        times["weights"].append(cpu_seconds(lambda: multiply(core)))
    milliseconds = {f"{way}_ms": 1e3 * min(taken) for way, taken in times.items()}
    ratio = milliseconds["loop_ms"] / milliseconds["unroll_ms"]
    return {"core": name, "options": options, **milliseconds, "ratio": ratio}


def main() -> None:
    """Measure and write."""
    torch.set_num_threads(1)
    rows = [measured(name, options) for name, options in CORES]
    for row in rows:
        print(row["core"], row["options"], {name: round(row[name], 1) for name in list(row)[2:]}, flush=True)
    path = Path(__file__).parent / "results" / "core-unrolls.json"
    path.write_text(json.dumps({"rows": rows, **provenance()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
