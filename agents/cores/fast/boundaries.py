"""Boundaries of episodes inside compiled loops over time. Shapes: T steps, B environments."""

from .arrays import Array
from .elementwise import part


@part
def gradient_ends(reset: Array, cut: int, t: int, b: int) -> bool:
    """Whether no gradient of environment b passes from step t to the state before it.

    That is where an episode begins (`reset` bool [T, B]), and before every `cut`-th step; 0 cuts none.
    """
    return reset[t, b] or (cut > 0 and t > 0 and t % cut == 0)


@part
def state_before(reset: Array, first: Array, after: Array, t: int, b: int, into: Array) -> None:
    """Write the state of environment b before step t: zero where an episode begins.

    Elsewhere it is that after the step before (`after` [T, B, H]), at t = 0 the `first` one [B, H].
    """
    if reset[t, b]:
        into[:] = 0
    else:
        into[:] = after[t - 1, b] if t > 0 else first[b]
