"""`rl-eval --intervene` and `--decode`: run a study of the recurrent state and tabulate it."""

from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from rich.table import Column, Table

from ...actors.actor import Actor
from ...actors.unroll import EPISODE_COLUMNS
from ...base.errors import EngramError, refuse, user_errors
from ...base.messages import nearest
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


class Study(NamedTuple):
    """Results of a study of the recurrent state, step by step."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]  # Cells of the table
    plain: list[dict[str, Any]]  # The results for JSON

    def table(self, title: str) -> Table:
        """The results as a table."""
        columns = (Column(name, justify="right" if name else "left", no_wrap=True) for name in self.header)
        table = Table(*columns, title=title, title_justify="left")
        for row in self.rows:
            table.add_row(*row)
        return table


def effect(without: Played, changed: Played, fields: tuple[str, ...], step: int) -> Effect:
    """Return paired differences of the episodes' outcomes; a rate is over the episodes that report it in both."""
    outcomes: dict[str, Difference] = {}
    for column, name in enumerate((*EPISODE_COLUMNS, *fields)):
        if name in ("return", "length", *RATES):
            old, new = (played.episodes[:, column].astype(np.float64) for played in (without, changed))
            if name in RATES:  # nan in an episode that does not report it
                reported = ~np.isnan(old + new)
                if not reported.any():
                    continue
                old, new = old[reported], new[reported]
            outcomes[name] = Difference(float(old.mean()), float(new.mean()), mean_interval(new - old))
    return Effect(step, int(changed.reached.sum()), outcomes)


def effects(points: list[Effect]) -> Study:
    """Tabulate an intervention at one or more steps, with a row for every step and outcome."""
    rows: list[tuple[str, ...]] = []
    plain: list[dict[str, Any]] = []
    for point in points:
        facts: dict[str, Any] = {"step": point.step, "reached": point.reached}
        for name, (without, changed, difference) in point.outcomes.items():
            form, by = ("{:.1f}%", 100) if name in RATES else ("{:.3f}", 1)
            mean, low, high = (by * x for x in difference)
            interval = f" [{low:+.3g}, {high:+.3g}]" if np.isfinite(low) else ""
            cells = [form.format(by * x) for x in (without, changed)]
            rows.append((str(point.step), f"{point.reached:,}", name, *cells, f"{mean:+.3g}{interval}"))
            facts[name] = {"without": without, "with": changed, "difference": difference.plain()}
        plain.append(facts)
    return Study(("step", "reached by", "", "undisturbed", "disturbed", "difference"), rows, plain)


def readings(points: list[Reading]) -> Study:
    """Tabulate a fact decoded at several steps, with a row for each."""
    rows = [
        (str(x.step), f"{x.episodes:,}", f"{x.accuracy:.1%} [{100 * x.low:.1f}, {100 * x.high:.1f}]", f"{x.chance:.1%}")
        for x in points
    ]
    return Study(("step", "episodes", "accuracy", "chance"), rows, [x._asdict() for x in points])


def intervention_study(
    make: Make, text: str, *, episodes: int, batch: int, sweep: bool, every: int, seed: int
) -> Study:
    """Measure the effects of an intervention at its step and, with `sweep`, at every `every`-th step after it. Raises
    EngramError for an intervention that the core does not support."""
    with user_errors("--intervene"):
        change = parsed(text)
        without = play_all(make, episodes, batch, None, seed)
        with closing(make(1, 0)) as actor:
            fields = tuple(actor.batch.episode_fields)

        def at(one: Intervention) -> Effect:
            return effect(without, play_all(make, episodes, batch, one, seed), fields, one.step)

        longest = int(without.episodes[:, EPISODE_COLUMNS.index("length")].max())
        first = at(change)
        refuse(not first.reached, f"no episode reaches step {change.step}; the longest has {longest} steps")
        later = range(every, max(longest - change.step, 1), every) if sweep else ()
        return effects([first, *(at(change.shifted(by)) for by in later)])


def decoding_study(make: Make, text: str, *, episodes: int, every: int) -> Study:
    """Decode a fact, or `FACT:PART=WHICH`, over time. Raises EngramError for an unknown fact or too few episodes."""
    with closing(make(episodes, 0)) as actor:
        fact, _, part = text.partition(":")
        names = getattr(actor.batch, "fact_values", {})
        if fact not in names and not hasattr(actor.batch, "info_scalars"):
            raise EngramError(f"--decode: unknown fact {fact!r}; available facts: {nearest(fact, names)}")
        refuse(episodes < FEWEST, f"--decode: {episodes} episodes; needed: at least {FEWEST}")
        with user_errors("--decode"):
            decoded = decode(actor, fact, every, part)
        refuse(not decoded, "--decode: this core has no state to decode from")
        return readings(decoded)
