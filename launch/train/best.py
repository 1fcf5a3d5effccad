"""Which checkpoint is the best one."""

import math
from collections.abc import Sequence

from ..run.saved import Best
from .member import Member


def best_now(best: Best | None, members: Sequence[Member], step: int) -> Best | None:
    """The best checkpoint if one is written now, at `step` of all members; `best` is the one so far."""
    for member in members:
        seen = member.score()
        if seen is None or not math.isfinite(seen.mean):
            continue
        evaluated = None if seen.error is not None else member.version
        if best and evaluated is not None and (best.member, best.version) == (member.number, evaluated):
            continue  # the evaluation that made it the best one
        if best is None or best.gives_way_to(seen.mean, seen.error):
            best = Best(seen.mean, step, member.number, seen.episodes, seen.error, evaluated)
    return best
