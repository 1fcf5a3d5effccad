"""Schedules of the learning rate: pure functions of the environment steps consumed so far."""

from typing import Literal, TypeAlias, get_args

Schedule: TypeAlias = Literal["constant", "linear"]


def scheduled(schedule: Schedule, initial: float, step: int, total_steps: int) -> float:
    """The value at `step` of a setting that starts at `initial`.

        constant   initial
        linear     initial * max(0, 1 - step / total_steps)     (Espeholt et al. 2018, table D.1)

    Nothing is remembered between calls: a run that resumes, or is extended by a larger `total_steps`, continues on the
    line that its own counters define.

    Args:
        schedule: "constant" or "linear".
        initial: value at step 0.
        step: environment steps consumed by the learner, at least 0.
        total_steps: step at which "linear" reaches 0, at least 1.
    """
    if schedule == "constant":
        return initial
    if schedule == "linear":
        return initial * max(0.0, 1.0 - step / total_steps)
    raise ValueError(f"unknown schedule {schedule!r}; allowed: {', '.join(get_args(Schedule))}")
