"""Whole episodes of one actor, for evaluations."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .actor import Actor
from .unroll import EPISODE_COLUMNS

Episodes = NDArray[np.float32]
"""[K, 3 + F]: K episodes in EPISODE_COLUMNS and the environment's own fields."""


class UnfinishedError(RuntimeError):
    """Episodes have not ended within the steps that they were given."""


def play(
    actor: Actor,
    episodes: int,
    report: Callable[[int], None] = lambda _: None,
    most_steps: float = math.inf,
) -> Episodes:
    """`episodes` finished episodes of an actor, an unbiased sample of all.

    Every environment has its number of episodes fixed beforehand, and its first so many count. The first ones to end
    anywhere would be short ones too often.

    Args:
        actor: fresh, so that every environment begins with an episode.
        episodes: how many, at least 1.
        report: called with the number of episodes that count so far.
        most_steps: steps of every environment after which no further unroll is begun.

    Raises:
        UnfinishedError: episodes were missing after so many steps.
    """
    n = actor.batch.num_envs
    missing = episodes // n + (np.arange(n) < episodes % n)
    kept: list[NDArray[Any]] = []
    steps = 0
    while missing.any():
        if steps >= most_steps:
            raise UnfinishedError(f"{missing.sum()} of {episodes} episodes did not end within {steps:,} steps")
        steps += actor.unroll_length
        for episode in actor.unroll().episodes.numpy():
            index = int(episode[0]) - actor.first_index
            if missing[index]:
                missing[index] -= 1
                kept.append(episode)
        report(len(kept))
    return np.stack(kept)


def known(facts: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Mask of the fields [K, 2 + F] that count, without the index: all but nan among the environment's own fields."""
    found = ~np.isnan(facts)
    found[:, : len(EPISODE_COLUMNS) - 1] = True  # a return that is no number is a fault to be seen
    return found


def known_means(names: Sequence[str], facts: NDArray[np.floating[Any]]) -> dict[str, float]:
    """Mean by name of what is known of episodes [K, len(names)]; fields that none of them has are left out."""
    columns = zip(names, facts.T, known(facts).T, strict=True)
    return {name: float(values[there].mean()) for name, values, there in columns if there.any()}
