"""`rl-eval`: evaluate a trained agent on episodes with random streams that training never used."""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table
from rich.text import Text

from ...actors.actor import Actor
from ...actors.episodes import play
from ...actors.factory import ActorFactory
from ...agents.process import prepare_process
from ...base.errors import file_errors, refuse
from ...base.settings import setting
from ..config.command_line import make_console, parse
from ..config.settings.plain import to_dict
from ..metrics.provenance import provenance
from ..runs.saved import Trainee, best_member, chosen_members, described
from ..runs.trained import ActingAgent, evaluation_envs, evaluation_factory, levels_line, make_actor, open_run
from .card import DIAGNOSIS, write_card
from .episodes import RATES, Estimate, Group, Summary, summarize
from .gif import encoded, film
from .studies import Effect, Reading, decoding_study, intervention_study

UNROLL_LENGTH = 20
_HELP = """Evaluate a trained agent: mean return and solved rate with 95% confidence intervals, on levels sampled
with a different seed than in training, and on the test split if the environment has one."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(ActingAgent):
    """The agent and the evaluation."""

    episodes: int = setting(1000, (1, 2**53))
    """Number of episodes; pomdp-graph uses the graphs of the test split unless --env-args split=train is set."""
    all: bool = False
    """Every member of a population, one per table row."""
    gif: str = setting("", file=".gif")
    """File for an animation of the first episodes: the agent's view, and the whole board if that shows more."""
    gif_episodes: int = setting(3, (1, None))
    """Episodes in the animation."""
    intervene: str = ""
    """Change the recurrent state and compare with the same episodes without the change: wipe@STEP, swap@STEP,
    freeze@STEP:END or noise@STEP:SIGMA, with :PART=WHICH for a part of the state, such as wipe@120:slot=2
    (docs/how-to/insight.md)."""
    sweep: bool = False
    """With --intervene: repeat at later steps, --every steps apart."""
    decode: str = ""
    """Fact of the environment that a linear decoder predicts from the recurrent state throughout an episode;
    FACT:PART=WHICH uses a part of the state, such as key:slot=2."""
    every: int = setting(10, (1, None))
    """Steps between the points of --sweep or --decode."""
    json: str = setting("", file="")
    """File for all results."""
    card: str = ""
    """Folder or URL for a shared copy of the agent: a Hugging Face model card, weights, configuration, metrics and a
    GIF. Every command accepts it in place of a run directory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        study = self.intervene or self.decode
        refuse(self.intervene and self.decode, "intervene and decode are both given; allowed: one of them")
        refuse(self.all and (study or self.card), "all is given with a study or card, which allow only one member")


def main(arguments: Sequence[str]) -> int:
    config = parse(EvaluationConfig, arguments, "rl-eval", _HELP)
    prepare_process(1)
    console = make_console()
    opened = open_run(config.run, config.checkpoint)
    trained, path, trainees, best = opened
    factory = evaluation_factory(trained, config.env_args)
    chosen, weights = chosen_members(trainees, config.member, config.all), opened.weights(config.member)
    gif = write_gif(factory, weights, config, console) if config.gif or config.card else None
    title = f"{factory.env} with {trained.agent.core}"
    if config.intervene or config.decode:
        study(factory, weights, config, title, console)
        return 0
    summaries = {index: evaluate(factory, trainees[index].weights, config, console) for index in chosen}
    summary, who = summaries[chosen[0]], described(trainees, chosen[0])
    title = f"{title}, {path.name}"
    if config.all:
        console.print(member_table(summaries, trainees, title))
    else:
        console.print(level_table(summary, f"{title}, {who}" if who else title))
    player = trained.learner.imitate
    notes = [f"imitates {player}: {DIAGNOSIS}"] if player else []
    notes += [f"best in training: {best}"] if best and config.checkpoint == "best" else []
    for note in (*notes, levels_line(trained, factory, config.seed)):
        console.print(note, highlight=False, soft_wrap=True)
    facts = {"checkpoint": path.name, "training_seed": trained.seed, "evaluation_seed": config.seed}
    facts |= {"greedy": config.greedy, "env_args": factory.env_args}
    if config.json:
        members = [summary.plain(member) for member, summary in summaries.items()]
        agent = {"run": config.run, "env": factory.env, "agent": to_dict(trained.agent)}
        agent |= {"imitates": player} if player else {}
        write_json(config.json, facts | agent | ({"members": members} if config.all else members[0]))
    if config.card:
        console.print(write_card(config.card, trained, weights, summary, facts, gif))
    return 0


def evaluate(
    factory: ActorFactory, weights: dict[str, Any], config: EvaluationConfig, console: Console | None = None
) -> Summary:
    """Summarize the episodes of these weights, on the same levels for all weights; show progress on a terminal."""
    sizes = {"num_envs": evaluation_envs(factory, config.episodes), "unroll_length": UNROLL_LENGTH}
    hidden = console is None or not console.is_terminal
    with (
        closing(acting(factory, weights, config, **sizes)) as actor,
        Progress(console=console, transient=True, disable=hidden) as progress,
    ):
        bar = progress.add_task("episodes", total=config.episodes)
        episodes = play(actor, config.episodes, lambda done: progress.update(bar, completed=done))
    level_fields, fixed = (getattr(actor.batch, name, ()) for name in ("level_fields", "fixed_levels"))
    return summarize(episodes, actor.batch.episode_fields, level_fields, by_environment=bool(fixed))


def acting(factory: ActorFactory, weights: dict[str, Any], config: EvaluationConfig, **sizes: int) -> Actor:
    return make_actor(factory, weights, seed=config.seed, greedy=config.greedy, **sizes)  # pyright: ignore


def study(
    factory: ActorFactory, weights: dict[str, Any], config: EvaluationConfig, agent: str, console: Console
) -> None:
    """Run the study of --intervene or --decode, print its results, and write them to --json."""

    def make(num_envs: int, first_index: int) -> Actor:
        return acting(factory, weights, config, num_envs=num_envs, unroll_length=1, first_index=first_index)

    options: dict[str, Any] = {"episodes": config.episodes, "every": config.every}
    with console.status("playing"):
        if config.intervene:
            effects = intervention_study(make, config.intervene, sweep=config.sweep, seed=config.seed, **options)
            points, table = [x.plain() for x in effects], effect_table(effects, f"{agent}: {config.intervene}")
        else:
            readings = decoding_study(make, config.decode, **options)
            title = f"{agent}: {config.decode} decoded from the recurrent state"
            points, table = [x._asdict() for x in readings], reading_table(readings, title)
    console.print(table)
    if config.json:
        write_json(config.json, asdict(config) | {"env": factory.env, "env_args": factory.env_args, "points": points})


def write_gif(
    factory: ActorFactory, weights: dict[str, Any], config: EvaluationConfig, console: Console
) -> bytes | None:
    """Return a GIF of the first episodes and write it to --gif; None if the environment cannot be rendered."""
    try:
        with closing(acting(factory, weights, config, num_envs=1, unroll_length=1)) as actor:
            gif = encoded(film(actor, config.gif_episodes))
    except ValueError as problem:
        if config.gif:
            console.print(f"cannot write {config.gif}: {problem}")
        return None
    if config.gif:
        with file_errors(f"--gif: cannot write {config.gif}"):
            Path(config.gif).write_bytes(gif)
        console.print(f"wrote {config.gif}")
    return gif


def write_json(file: str, results: dict[str, Any]) -> None:
    """Write results, with the machine, versions and commit."""
    with file_errors(f"--json: cannot write {file}"):
        Path(file).write_text(json.dumps(provenance() | results, indent=1) + "\n")


def level_table(summary: Summary, title: str) -> Table:
    """A row for all episodes, then a row for each kind of level."""
    rows = [(("all",), summary.all)]
    for name, groups in summary.split.items():
        label = name.removeprefix("num_").replace("_", " ")
        rows += [((f"{label} {value}",), group) for value, group in groups.items()]
    return _table(title, ("levels",), rows)


def member_table(summaries: dict[int, Summary], trainees: list[Trainee], title: str) -> Table:
    """A row per member, with its score in training; the number of the best one is bold."""
    rows: list[tuple[tuple[str | Text, ...], Group]] = []
    for member, summary in summaries.items():
        score = trainees[member].score
        label = Text(f"{member}", "bold" if member == best_member(trainees) else "")
        rows.append(((label, "?" if score is None else f"{score:.2f}"), summary.all))
    return _table(title, ("member", "in training"), rows)


def _table(title: str, header: tuple[str, ...], rows: Sequence[tuple[tuple[str | Text, ...], Group]]) -> Table:
    """Tabulate groups of episodes, each with its labels; rates come first."""
    names = dict.fromkeys(name for _, group in rows for name in group.estimates)
    names = sorted(names, key=lambda name: name not in RATES)
    cells = [
        (*labels, f"{group.episodes:,}", *(_format(name, group.estimates.get(name)) for name in names))
        for labels, group in rows
    ]
    return _grid(title, (*header, "episodes", *(name.replace("_", " ") for name in names)), cells)


def _grid(title: str, header: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    columns = (Column(name, justify="right" if k else "left", no_wrap=not k) for k, name in enumerate(header))
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def _format(name: str, estimate: Estimate | None) -> str:
    """Format a mean and its interval, e.g. "91.2% [89.3, 92.8]"; a length has no interval, to fit narrow terminals."""
    if estimate is None:
        return ""
    mean, low, high = (100 * x for x in estimate) if name in RATES else estimate
    if name == "length":
        return f"{mean:.1f}"
    text, digits = (f"{mean:.1f}%", 1) if name in RATES else (f"{mean:.2f}", 2)
    return f"{text} [{low:.{digits}f}, {high:.{digits}f}]" if np.isfinite(low) else text


def effect_table(points: list[Effect], title: str) -> Table:
    rows: list[tuple[str, ...]] = []
    for step, reached, outcomes in points:
        for name, (without, changed, difference) in outcomes.items():
            form, by = ("{:.1f}%", 100) if name in RATES else ("{:.3f}", 1)
            mean, low, high = (by * x for x in difference)
            interval = f" [{low:+.3g}, {high:+.3g}]" if np.isfinite(low) else ""
            cells = [form.format(by * x) for x in (without, changed)]
            rows.append((str(step), f"{reached:,}", name, *cells, f"{mean:+.3g}{interval}"))
    return _grid(title, ("step", "reached by", "outcome", "undisturbed", "disturbed", "difference"), rows)


def reading_table(points: list[Reading], title: str) -> Table:
    rows = [
        (str(x.step), f"{x.episodes:,}", f"{x.accuracy:.1%} [{100 * x.low:.1f}, {100 * x.high:.1f}]", f"{x.chance:.1%}")
        for x in points
    ]
    return _grid(title, ("step", "episodes", "accuracy", "chance"), rows)
