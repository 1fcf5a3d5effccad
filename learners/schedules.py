"""Schedules of the learning rate and the entropy cost: pure functions of the environment steps consumed so far."""

from typing import Literal, TypeAlias, get_args

Schedule: TypeAlias = Literal["constant", "linear"]


def scheduled(schedule: Schedule, initial: float, step: int, total_steps: int, warmup: int = 0) -> float:
    """The value at `step` of a setting that starts at `initial`, or rises to it over the first `warmup` steps.

        constant   initial
        linear     initial * max(0, 1 - step / total_steps)     (Espeholt et al. 2018, table D.1)
        warm-up    times min(1, (step + 1) / warmup)

    Nothing is remembered between calls: a run that resumes, or is extended by a larger `total_steps`, continues on the
    line that its own counters define.

    Args:
        schedule: "constant" or "linear".
        initial: value at step 0.
        step: environment steps consumed by the learner, at least 0.
        total_steps: step at which "linear" reaches 0, at least 1.
        warmup: steps, at least 0; 0 is no warm-up.
    """
    if warmup:
        initial *= min(1.0, (step + 1) / warmup)
    if schedule == "constant":
        return initial
    if schedule == "linear":
        return initial * max(0.0, 1.0 - step / total_steps)
    raise ValueError(f"unknown schedule {schedule!r}; allowed: {', '.join(get_args(Schedule))}")
