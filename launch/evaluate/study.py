"""`rl-eval --intervene` and `--decode`: studies of the recurrent state."""

from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from ...actors.actor import Actor
from ...actors.unroll import EPISODE_COLUMNS
from ...base.errors import EngramError, refuse, user_errors
from ...base.messages import nearest
from ..runs.trained import EVALUATED_TOGETHER
from .decode import FEWEST, Reading, decode
from .episodes import RATES, Estimate, mean_interval
from .intervene import Intervention, Played, parsed, play_all

Make = Callable[[int, int], Actor]  # Makes an actor, from the number of environments and the index of the first


class Difference(NamedTuple):
    """An outcome with and without an intervention, over the same levels and random numbers."""

    without: float
    changed: float
    difference: Estimate  # Difference per episode, with minus without; Student's t


class Effect(NamedTuple):
    """Effect of one intervention."""

    step: int
    reached: int  # Episodes that reached the step; the others are unchanged
    outcomes: dict[str, Difference]  # `return`, `length` and `solved`, if the environment has them

    def plain(self) -> dict[str, Any]:
        """The effect for JSON."""
        outcomes = {
            name: {"without": x.without, "with": x.changed, "difference": x.difference.plain()}
            for name, x in self.outcomes.items()
        }
        return {"step": self.step, "reached": self.reached} | outcomes


def effect(without: Played, changed: Played, fields: tuple[str, ...], step: int) -> Effect:
    """Return paired differences of the episodes' outcomes; a rate is over the episodes that report it in both."""
    outcomes: dict[str, Difference] = {}
    for column, name in enumerate((*EPISODE_COLUMNS, *fields)):
        if name in ("return", "length", *RATES):
            old, new = (played.episodes[:, column].astype(np.float64) for played in (without, changed))
            if name in RATES:  # nan in an episode that does not report it
                reported = ~np.isnan(old + new)
                old, new = old[reported], new[reported]
            if len(old):
                outcomes[name] = Difference(float(old.mean()), float(new.mean()), mean_interval(new - old))
    return Effect(step, int(changed.reached.sum()), outcomes)


def intervention_study(make: Make, text: str, *, episodes: int, sweep: bool, every: int, seed: int) -> list[Effect]:
    """Measure the effects of an intervention at its step and, with `sweep`, at every `every`-th step after it. Raises
    EngramError for an intervention that the core does not support."""
    with user_errors("--intervene"):
        change = parsed(text)
        without = play_all(make, episodes, EVALUATED_TOGETHER, None, seed)
        with closing(make(1, 0)) as actor:
            fields = tuple(actor.batch.episode_fields)

        def at(one: Intervention) -> Effect:
            return effect(without, play_all(make, episodes, EVALUATED_TOGETHER, one, seed), fields, one.step)

        longest = int(without.episodes[:, EPISODE_COLUMNS.index("length")].max())
        first = at(change)
        refuse(not first.reached, f"no episode reaches step {change.step}; the longest has {longest} steps")
        later = range(every, max(longest - change.step, 1), every) if sweep else ()
        return [first, *(at(change.shifted(by)) for by in later)]


def decoding_study(make: Make, text: str, *, episodes: int, every: int) -> list[Reading]:
    """Decode a fact, or `FACT:PART=WHICH`, over time. Raises EngramError for an unknown fact or too few episodes."""
    refuse(episodes < FEWEST, f"--decode: {episodes} episodes; needed: at least {FEWEST}")
    with closing(make(episodes, 0)) as actor, user_errors("--decode"):
        fact, _, part = text.partition(":")
        names = getattr(actor.batch, "fact_values", {})
        if fact not in names and not hasattr(actor.batch, "info_scalars"):
            raise EngramError(f"unknown fact {fact!r}; available facts: {nearest(fact, names)}")
        readings = decode(actor, fact, every, part)
        refuse(not readings, "this core has no state to decode from")
        return readings
