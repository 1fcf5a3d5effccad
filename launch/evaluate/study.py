"""`rl-eval --intervene` and `--decode`: run a study of the recurrent state, print it, write it as JSON and a plot."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from ...actors.actor import Actor
from ...actors.unroll import EPISODE_COLUMNS
from ...base.errors import EngramError, refuse, user_errors
from ...base.messages import nearest
from .decode import FEWEST, Reading, decode
from .episodes import RATES, Estimate, mean_interval
from .intervene import Intervention, Played, parsed, play_all

Make = Callable[[int, int], Actor]  # Makes an actor from the number of environments and the index of the first one


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


def effect(without: Played, changed: Played, fields: tuple[str, ...], step: int) -> Effect:
    """Paired differences of the episodes' outcomes."""
    columns = [name for name in (*EPISODE_COLUMNS, *fields) if name in ("return", "length", *RATES)]
    outcomes: dict[str, Difference] = {}
    for name in columns:
        place = (*EPISODE_COLUMNS, *fields).index(name)
        old, new = without.episodes[:, place].astype(np.float64), changed.episodes[:, place].astype(np.float64)
        outcomes[name] = Difference(float(old.mean()), float(new.mean()), mean_interval(new - old))
    return Effect(step, int(changed.reached.sum()), outcomes)


class Study(NamedTuple):
    """Results of a study of the recurrent state, step by step."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]  # Cells of the table
    plain: list[dict[str, Any]]  # The results for JSON
    curve: dict[str, Any]
    """`steps`, `values` and `reference` [K], `band` [K, 2]; `measure` and the names of `values` and `reference`."""

    def show(self, title: str, console: Console) -> None:
        """Print the table."""
        table = Table(title=title, title_justify="left")
        for name in self.header:
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def draw(self, title: str, file: Path) -> None:
        """Plot the values over the step with their interval and the reference. Raises OSError."""
        from matplotlib.figure import Figure  # takes half a second, and most evaluations plot nothing

        steps, values, band, reference, measure, names = self.curve.values()
        figure = Figure((7.5, 3.4), dpi=130, layout="constrained")
        axes: Any = figure.subplots()  # pyright: ignore[reportUnknownMemberType]
        axes.fill_between(steps, band[:, 0], band[:, 1], alpha=0.25, linewidth=0)
        axes.plot(steps, values, marker="o" if len(steps) < 40 else "", markersize=3.5, label=names[0])
        axes.plot(steps, np.broadcast_to(reference, steps.shape), color="gray", linestyle="--", label=names[1])
        axes.set(xlabel="step of the episode", ylabel=measure, title=title)
        axes.set_ylim(
            min(0.0, float(np.nanmin(band))) if measure == "return" else 0.0, None if measure == "return" else 1.03
        )
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(file)  # pyright: ignore[reportUnknownMemberType]


def effects(points: list[Effect]) -> Study:
    """An intervention at one step or at several: a table row for every step and outcome."""
    rows: list[tuple[str, ...]] = []
    for each in points:
        for name, outcome in each.outcomes.items():
            form, by = ("{:.1f}%", 100) if name in RATES else ("{:.3f}", 1)
            mean, low, high = (by * x for x in outcome.difference)
            interval = f" [{low:+.3g}, {high:+.3g}]" if np.isfinite(low) else ""
            cells = [form.format(by * x) for x in (outcome.without, outcome.changed)]
            rows.append((str(each.step), f"{each.reached:,}", name, *cells, f"{mean:+.3g}{interval}"))
    plain = [
        {"step": each.step, "reached": each.reached}
        | {
            name: {"without": d.without, "with": d.changed, "difference": _finite(d.difference)}
            for name, d in each.outcomes.items()
        }
        for each in points
    ]
    measure = "solved" if "solved" in points[0].outcomes else "return"
    chosen = [each.outcomes[measure] for each in points]
    curve = {
        "steps": np.array([each.step for each in points]),
        "values": np.array([d.changed for d in chosen]),
        "band": np.array([[d.without + d.difference.low, d.without + d.difference.high] for d in chosen]),
        "reference": chosen[0].without,
        "measure": measure,
        "names": ("with the intervention at this step", "undisturbed"),
    }
    return Study(("step", "reached by", "", "undisturbed", "disturbed", "difference"), rows, plain, curve)


def readings(points: list[Reading]) -> Study:
    """A fact decoded at several steps, a table row each."""
    rows = [
        (str(x.step), f"{x.episodes:,}", f"{x.accuracy:.1%} [{100 * x.low:.1f}, {100 * x.high:.1f}]", f"{x.chance:.1%}")
        for x in points
    ]
    curve = {name: np.array([getattr(each, place) for each in points]) for name, place in _COLUMNS.items()}
    curve["band"] = np.array([[each.low, each.high] for each in points])
    names = {"measure": "accuracy", "names": ("decoded from the state after this step", "chance")}
    order = {name: curve[name] for name in ("steps", "values", "band", "reference")}
    return Study(("step", "episodes", "accuracy", "chance"), rows, [each._asdict() for each in points], order | names)


_COLUMNS = {"steps": "step", "values": "accuracy", "reference": "chance"}


def intervention_study(
    make: Make, text: str, *, episodes: int, batch: int, sweep: bool, every: int, seed: int
) -> Study:
    """The effects of an intervention at its step, or with `sweep` also at every `every`-th step after it. Raises
    EngramError for an intervention that the core does not support."""
    with user_errors("--intervene"):
        what = parsed(text)
        without = play_all(make, episodes, batch, None, seed)
        fields = tuple(make(1, 0).batch.episode_fields)

        def at(one: Intervention) -> Effect:
            return effect(without, play_all(make, episodes, batch, one, seed), fields, one.step)

        longest = int(without.episodes[:, EPISODE_COLUMNS.index("length")].max())
        first = at(what)
        refuse(not first.reached, f"no episode reaches step {what.step}; the longest has {longest} steps")
        if not sweep:
            return effects([first])
        return effects([at(what.shifted(by)) for by in range(0, max(longest - what.step, 1), every)])


def decoding_study(make: Make, text: str, *, episodes: int, every: int) -> Study:
    """Decode a fact, or `FACT:PART=WHICH`, over time. Raises EngramError for an unknown one or too few episodes."""
    with closing(make(episodes, 0)) as actor:
        return _decoded(actor, text, episodes, every)


def _decoded(actor: Actor, text: str, episodes: int, every: int) -> Study:
    fact, _, part = text.partition(":")
    names = getattr(actor.batch, "fact_values", {})
    if fact not in names and not hasattr(actor.batch, "info_scalars"):
        raise EngramError(f"--decode: unknown fact {fact!r}; available facts: {nearest(fact, names)}")
    refuse(episodes < FEWEST, f"--decode: {episodes} episodes; needed: at least {FEWEST}")
    with user_errors("--decode"):
        decoded = decode(actor, fact, every, part)
    refuse(not decoded, "--decode: this core has no state to decode from")
    return readings(decoded)


def _finite(estimate: Estimate) -> dict[str, Any]:
    return {key: x if np.isfinite(x) else None for key, x in estimate._asdict().items()}
