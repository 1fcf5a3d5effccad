"""`rl-eval`: evaluate a trained agent on episodes with random streams that training never used."""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from ...actors.actor import Actor
from ...actors.episodes import play
from ...actors.factory import ActorFactory
from ...agents.process import prepare_process
from ...base.errors import file_errors, refuse
from ...base.settings import setting
from ..config.command_line import make_console, parse
from ..config.settings.plain import to_dict
from ..metrics.provenance import provenance
from ..runs.saved import chosen_members, described
from ..runs.trained import (
    ActingAgent,
    evaluation_envs,
    evaluation_factory,
    levels_line,
    make_actor,
    open_run,
)
from .card import DIAGNOSIS, write_card
from .decode import decoding_study
from .episodes import Summary, summarize
from .gif import encoded, film
from .intervene import intervention_study
from .tables import effect_table, level_table, member_table, reading_table

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
    """Make an actor with these weights that acts as configured; `sizes` are arguments of `make_actor`."""
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
