"""Environments that begin together, spread over the phases of an episode.

All environments begin together, and in every stage of a curriculum again. Where episodes have one length, or as long as
nothing is solved, they also end together, so that a batch holds one phase of the episode and the next batch another.
"""

import numpy as np
from numpy.typing import NDArray

GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, without their whole part, lie evenly in 0..1 however many there are."""


class Stagger:
    """Says where episodes are to be cut: of each environment one, the one that it is in after 1..`steps` steps.

    Args:
        steps: to spread the cuts over; 0 cuts nothing.
        first_index: index of the first environment among all environments of the run.
        num_envs: environments.
    """

    def __init__(self, steps: int, first_index: int, num_envs: int) -> None:
        phases = (np.arange(first_index, first_index + num_envs) * GOLDEN) % 1.0
        self.left: NDArray[np.int64] = (1 + phases * steps).astype(np.int64) * (steps > 0)
        """Steps until the cut of an environment; 0 where none is to come."""

    def due(self, over: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """After a step: the environments to cut, bool [N]; None if none is.

        Args:
            over: where the step has ended the episode anyway; none is cut there, then or later.
        """
        if not self.left.any():
            return None
        due = (self.left == 1) & ~over
        self.left = np.maximum(self.left - 1, 0)
        return due if due.any() else None
