"""Complete episodes of one actor, for evaluations."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .actor import Actor
from .unroll import EPISODE_COLUMNS

Episodes = NDArray[np.float32]  # [K, 3 + F]: K episodes, with EPISODE_COLUMNS and F fields of the environment


class UnfinishedError(RuntimeError):
    """Raised when too few episodes have ended within the allowed number of steps."""


def play(
    actor: Actor, episodes: int, report: Callable[[int], None] = lambda _: None, most_steps: float = math.inf
) -> Episodes:
    """Return `episodes` finished episodes of a new actor, an unbiased sample: in each environment, a number fixed in
    advance counts. Counting the first episodes to end in any environment would favor short ones. Raises UnfinishedError
    after `most_steps` steps per environment. `report` is called with the number that count so far."""
    n = actor.batch.num_envs
    missing = episodes // n + (np.arange(n) < episodes % n)
    counted: list[NDArray[Any]] = []
    steps = 0
    while missing.any():
        if steps >= most_steps:
            raise UnfinishedError(f"{missing.sum()} of {episodes} episodes did not end within {steps:,} steps")
        steps += actor.unroll_length
        for episode in actor.unroll().episodes.numpy():
            if missing[index := int(episode[0]) - actor.first_index]:
                missing[index] -= 1
                counted.append(episode)
        report(len(counted))
    return np.stack(counted)


def known(facts: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Mask [K, 2 + F] of the values to average, without the index column: all but nan in the environment's fields."""
    mask = ~np.isnan(facts)
    mask[:, : len(EPISODE_COLUMNS) - 1] = True  # a nan return is an error and must stay visible
    return mask


def known_means(names: Sequence[str], facts: NDArray[np.floating[Any]]) -> dict[str, float]:
    """Mean of each field of episodes [K, len(names)] over its non-nan values; fields without any are omitted."""
    columns = zip(names, facts.T, known(facts).T, strict=True)
    return {name: float(values[mask].mean()) for name, values, mask in columns if mask.any()}
