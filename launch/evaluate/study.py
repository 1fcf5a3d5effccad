"""`rl-eval --intervene` and `--decode`: run a study of the memory, show it, write it as JSON and as a picture."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ...actors.actor import Actor
from ...actors.unroll import EPISODE_COLUMNS
from ...base.messages import nearest
from ..run.command_line import UsageError
from .decode import FEWEST, Reading, decode
from .episodes import RATES, Estimate, mean_interval
from .intervene import Intervention, Played, parsed, play_all

Make = Callable[[int, int], Actor]
"""An actor of so many environments, the first of which has this index."""


class Difference(NamedTuple):
    """An outcome with and without an intervention, over the same levels and random numbers."""

    without: float
    changed: float
    difference: Estimate
    """Of each episode, with less without; Student's t."""


class Effect(NamedTuple):
    """Effect of one intervention."""

    step: int
    reached: int
    """Episodes that lasted until its step; the others are as they were."""
    outcomes: dict[str, Difference]
    """`return`, `length` and `solved`, as far as the environment has them."""


def effect(without: Played, changed: Played, fields: tuple[str, ...], step: int) -> Effect:
    """Paired differences of the episodes' outcomes."""
    columns = [name for name in (*EPISODE_COLUMNS, *fields) if name in ("return", "length", *RATES)]
    outcomes: dict[str, Difference] = {}
    for name in columns:
        place = (*EPISODE_COLUMNS, *fields).index(name)
        old, new = without.episodes[:, place].astype(np.float64), changed.episodes[:, place].astype(np.float64)
        outcomes[name] = Difference(float(old.mean()), float(new.mean()), mean_interval(new - old))
    return Effect(step, int(changed.reached.sum()), outcomes)


class Effects(NamedTuple):
    """An intervention at one step or at several."""

    points: list[Effect]

    def show(self, title: str, console: Console) -> None:
        """A row for every step and outcome."""
        table = Table(title=title, title_justify="left")
        for name in ("step", "reached by", "", "undisturbed", "disturbed", "difference"):
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        for each in self.points:
            for name, outcome in each.outcomes.items():
                form, by = ("{:.1f}%", 100) if name in RATES else ("{:.3f}", 1)
                mean, low, high = (by * x for x in outcome.difference)
                interval = f" [{low:+.3g}, {high:+.3g}]" if np.isfinite(low) else ""
                said = [form.format(by * x) for x in (outcome.without, outcome.changed)]
                table.add_row(str(each.step), f"{each.reached:,}", name, *said, f"{mean:+.3g}{interval}")
        console.print(table)

    def plain(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [
            {
                "step": each.step,
                "reached": each.reached,
                **{
                    name: {"without": d.without, "with": d.changed, **_finite("difference", d.difference)}
                    for name, d in each.outcomes.items()
                },
            }
            for each in self.points
        ]

    def draw(self, title: str, file: Path) -> None:
        """Outcome over the step of the intervention, beside the undisturbed one. Raises OSError."""
        name = "solved" if "solved" in self.points[0].outcomes else "return"
        chosen = [each.outcomes[name] for each in self.points]
        steps = np.array([each.step for each in self.points])
        changed = np.array([d.changed for d in chosen])
        band = np.array([[d.without + d.difference.low, d.without + d.difference.high] for d in chosen])
        _curve(
            steps,
            changed,
            band,
            (name, "with the intervention at this step"),
            chosen[0].without,
            "undisturbed",
            title,
            file,
        )


class Readings(NamedTuple):
    """A fact decoded at several steps."""

    points: list[Reading]

    def show(self, title: str, console: Console) -> None:
        """A row for every step at which the fact was decoded."""
        table = Table(title=title, title_justify="left")
        for column in ("step", "episodes", "accuracy", "chance"):
            table.add_column(column, justify="right")
        for each in self.points:
            said = f"{100 * each.accuracy:.1f}% [{100 * each.low:.1f}, {100 * each.high:.1f}]"
            table.add_row(str(each.step), f"{each.episodes:,}", said, f"{100 * each.chance:.1f}%")
        console.print(table)

    def plain(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [each._asdict() for each in self.points]

    def draw(self, title: str, file: Path) -> None:
        """Accuracy over time with chance. Raises OSError."""
        steps, accuracy, chance = (
            np.array([getattr(r, name) for r in self.points]) for name in ("step", "accuracy", "chance")
        )
        band = np.array([[each.low, each.high] for each in self.points])
        _curve(
            steps, accuracy, band, ("accuracy", "decoded from the state after this step"), chance, "chance", title, file
        )


def intervention_study(
    make: Make, text: str, *, episodes: int, batch: int, sweep: bool, every: int, seed: int
) -> Effects:
    """The effects of an intervention at its step, or with `sweep` also at every `every`-th step after it.

    Raises UsageError for words that mean no intervention of this core.
    """
    try:
        what = parsed(text)
        without = play_all(make, episodes, batch, None, seed)
        fields = tuple(make(1, 0).batch.episode_fields)

        def at(one: Intervention) -> Effect:
            return effect(without, play_all(make, episodes, batch, one, seed), fields, one.step)

        longest = int(without.episodes[:, EPISODE_COLUMNS.index("length")].max())
        first = at(what)
        if not first.reached:
            raise ValueError(f"no episode reaches step {what.step}; the longest has {longest} steps")
        if not sweep:
            return Effects([first])
        return Effects([at(what.shifted(by)) for by in range(0, max(longest - what.step, 1), every)])
    except ValueError as problem:
        raise UsageError(f"--intervene: {problem}") from problem


def decoding_study(make: Make, text: str, *, episodes: int, every: int) -> Readings:
    """A fact, or `FACT:PART=WHICH`, decoded over time. Raises UsageError for an unknown one or too few episodes."""
    with closing(make(episodes, 0)) as actor:
        return _decoded(actor, text, episodes, every)


def _decoded(actor: Actor, text: str, episodes: int, every: int) -> Readings:
    fact, _, part = text.partition(":")
    names = getattr(actor.batch, "fact_values", {})
    if fact not in names and not hasattr(actor.batch, "info_scalars"):
        raise UsageError(f"--decode: unknown fact {fact!r}; this environment tells: {nearest(fact, names)}")
    if episodes < FEWEST:
        raise UsageError(f"--decode: {episodes} episodes; needed: at least {FEWEST}")
    try:
        found = decode(actor, fact, every, part)
    except ValueError as problem:
        raise UsageError(f"--decode: {problem}") from problem
    if not found:
        raise UsageError("--decode: this core has no state to decode from")
    return Readings(found)


def _curve(
    steps: NDArray[Any],
    values: NDArray[Any],
    band: NDArray[Any],
    names: tuple[str, str],
    reference: NDArray[Any] | float,
    reference_name: str,
    title: str,
    file: Path,
) -> None:
    from matplotlib.figure import Figure  # takes half a second, and most evaluations draw nothing

    figure = Figure((7.5, 3.4), dpi=130, layout="constrained")
    axes: Any = figure.subplots()  # pyright: ignore[reportUnknownMemberType]
    axes.fill_between(steps, band[:, 0], band[:, 1], alpha=0.25, linewidth=0)
    axes.plot(steps, values, marker="o" if len(steps) < 40 else "", markersize=3.5, label=names[1])
    axes.plot(steps, np.broadcast_to(reference, steps.shape), color="gray", linestyle="--", label=reference_name)
    axes.set(xlabel="step of the episode", ylabel=names[0], title=title)
    axes.set_ylim(
        min(0.0, float(np.nanmin(band))) if names[0] == "return" else 0.0, None if names[0] == "return" else 1.03
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file)  # pyright: ignore[reportUnknownMemberType]


def _finite(name: str, estimate: Estimate) -> dict[str, Any]:
    return {name: {key: x if np.isfinite(x) else None for key, x in estimate._asdict().items()}}
