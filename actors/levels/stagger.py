"""Staggering of environments that begin together, over the phases of an episode.

All environments begin together at the start of a run and of every stage of a curriculum. If episodes have a fixed
length, or while none is solved, they also end together, so that each batch contains only one phase of the episode.
"""

import numpy as np
from numpy.typing import NDArray

GOLDEN = (5**0.5 - 1) / 2
"""Golden ratio minus 1; the fractional parts of its multiples are evenly spread over 0..1 for any count."""


class Stagger:
    """Selection of one episode per environment to truncate: the one in progress after a number of steps in 1..`steps`.

    Args:
        steps: range over which the cuts are spread; 0 disables them.
        first_index: index of the first environment among all environments of the run.
        num_envs: number of environments.
    """

    def __init__(self, steps: int, first_index: int, num_envs: int) -> None:
        phases = (np.arange(first_index, first_index + num_envs) * GOLDEN) % 1.0
        self.left: NDArray[np.int64] = (1 + phases * steps).astype(np.int64) * (steps > 0)
        """Steps until each environment's episode is cut; 0 if no cut remains."""

    def due(self, over: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """Return the environments to cut after a step, bool [N]; None if there are none.

        Args:
            over: bool [N], whether the step has ended the episode; an environment whose cut is due then is never cut.
        """
        if not self.left.any():
            return None
        due = (self.left == 1) & ~over
        self.left = np.maximum(self.left - 1, 0)
        return due if due.any() else None
