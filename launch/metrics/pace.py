"""Slow environments: the time of one actor's unroll, and flags that shorten it."""

from typing import Any, NamedTuple

from ...envs.foreign import ForeignBatch
from ...envs.foreign.check import Pace
from ...envs.registration import takes_workers
from ..run.config import RunConfig

SLOW_SECONDS = 10.0
"""Seconds of an actor's first unroll above which a message is shown."""
LEAST_STEPS = 4
"""Shortest unroll to recommend."""
WAITING = 0.5
"""Share of CPU time in a step below which an environment waits for something outside this process."""


class Slow(NamedTuple):
    """Description of a slow environment, and advice."""

    found: str
    advice: str


def measured_pace(config: RunConfig, batch: Any) -> Pace | None:
    """Check an environment and measure its pace; None for engram's own, which are fast.

    A pace that looks slow is measured again, since a first call may load or compile. Raises ValueError naming the fault
    of the environment.
    """
    if not isinstance(batch, ForeignBatch):
        return None
    pace = batch.check()
    return pace if slow_environment(config, pace, 1) is None else Pace(*map(min, pace, batch.check()))


def slow_environment(config: RunConfig, pace: Pace, cores: int) -> Slow | None:
    """Estimated seconds of an unroll with other flags; None if it is not slow.

    Args:
        cores: cores for the environments of one actor.
    """
    envs, length, several = config.factory().num_envs, config.unroll_length, takes_workers(config.env)
    turns = -(-envs // max(1, min(config.env_workers, envs))) if several else 1
    whole, resets = length * turns * pace.step, turns * pace.reset
    if whole + resets < SLOW_SECONDS:
        return None
    description = (
        f"{pace.step:.2g} s per step, {pace.reset:.2g} s per reset: an unroll of {length} steps x {envs} environments "
        f"takes about {_seconds(whole)}, the first one {_seconds(whole + resets)}"
    )
    ways: list[str] = []
    workers = envs if pace.cpu < WAITING else min(envs, cores)
    if several and workers > max(1, config.env_workers):
        ways.append(f"--env-workers {workers}: about {_seconds(length * -(-envs // workers) * pace.step)}")
    shorter = max(LEAST_STEPS, int(SLOW_SECONDS / (turns * pace.step))) if pace.step else length
    if shorter < length:
        ways.append(f"--unroll-length {shorter}: about {_seconds(shorter * turns * pace.step)}, at the same steps/s")
    return Slow(description, "; ".join(ways) or "fewer --envs-per-actor")


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:,.0f} s"
