"""`rl-eval`: evaluate a trained agent on episodes with random streams that training never used."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from ... import zoo
from ...actors.actor import Actor
from ...actors.episodes import play
from ...actors.factory import ActorFactory
from ...agents.process import prepare_process
from ...base.errors import file_errors, refuse
from ...base.settings import setting
from ..config.command_line import make_console, parse
from ..config.run_config import RunConfig
from ..config.settings.plain import to_dict
from ..metrics.provenance import provenance
from ..runs.saved import chosen_members, described
from ..runs.trained import (
    EVALUATED_TOGETHER,
    ActingAgent,
    evaluation_envs,
    evaluation_factory,
    levels_line,
    make_actor,
    open_run,
)
from .card import Card, write_card
from .episodes import Summary, summarize
from .gif import encoded, film
from .study import decoding_study, intervention_study
from .tables import show, show_members, zoo_table

UNROLL_LENGTH = 20
DIAGNOSIS = "a diagnosis of the network, not a result of reinforcement learning"
_HELP = """Evaluate a trained agent: mean return and solved rate with 95% confidence intervals, on levels sampled
with a different seed than in training, and on the test split if the environment has one."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(ActingAgent):
    """The agent and the evaluation. RUN may also be zoo: to list the included agents."""

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
        excluded = {
            f"all and member {self.member} are both given; allowed: one of them": self.all and self.member >= 0,
            "intervene and decode are both given; allowed: one of them": self.intervene and self.decode,
            "all is given with a study or card, which allow only one member": self.all and (study or self.card),
            "sweep is given without intervene, which it repeats": self.sweep and not self.intervene,
        }
        for message, holds in excluded.items():
            refuse(holds, message)


def main(arguments: Sequence[str]) -> int:
    """Evaluate according to the arguments; return the exit code."""
    config = parse(EvaluationConfig, arguments, "rl-eval", _HELP)
    prepare_process(1)
    console = make_console()
    if config.run == zoo.PREFIX:
        console.print(zoo_table())
        return 0
    opened = open_run(config.run, config.checkpoint)
    trained, path, trainees, best = opened
    factory = evaluation_factory(trained, config.env_args)
    chosen, weights = chosen_members(trainees, config.member, config.all), opened.weights(config.member)
    gif = write_gif(factory, weights, config, console) if config.gif or config.card else None
    if config.intervene or config.decode:
        study(factory, weights, config, f"{factory.env} with {trained.agent.core}", console)
        return 0
    summaries = {index: evaluated(factory, trainees[index].weights, config, console) for index in chosen}
    title = f"{factory.env} with {trained.agent.core}, {path.name}"
    if config.all:
        show_members(summaries, trainees, title, console)
    else:
        who = described(trainees, chosen[0])
        show(summaries[chosen[0]], f"{title}{who and ', '}{who}", console)
    if trained.learner.imitate:
        console.print(f"imitates {trained.learner.imitate}: {DIAGNOSIS}", highlight=False, soft_wrap=True)
    if best and config.checkpoint == "best":
        console.print(f"best in training: {best}", highlight=False, soft_wrap=True)
    console.print(levels_line(trained, factory, config.seed), highlight=False, soft_wrap=True)
    if config.json:
        write_json(config, trained, factory, path, summaries)
    if config.card:
        facts = {"checkpoint": path.name, "training_seed": trained.seed}
        facts |= {"imitates": f"{trained.learner.imitate}, {DIAGNOSIS}"} if trained.learner.imitate else {}
        facts |= {"evaluation_seed": config.seed, "greedy": config.greedy}
        card = Card(trained, factory.env_args, weights, summaries[chosen[0]], facts, gif)
        console.print(write_card(config.card, card))
    return 0


def evaluated(factory: ActorFactory, weights: dict[str, Any], config: EvaluationConfig, console: Console) -> Summary:
    """Run `evaluate` with a progress bar."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("episodes", total=config.episodes)
        return evaluate(factory, weights, config, lambda done: progress.update(bar, completed=done))


def evaluate(
    factory: ActorFactory,
    weights: dict[str, Any],
    config: EvaluationConfig,
    report: Callable[[int], None] = lambda _: None,
) -> Summary:
    """Summarize the episodes of these weights, on the same levels for all weights; `report` as in `play`."""
    num_envs = evaluation_envs(factory, config.episodes)
    with closing(acting(factory, weights, config, num_envs=num_envs, unroll_length=UNROLL_LENGTH)) as actor:
        episodes = play(actor, config.episodes, report)
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

    with console.status("playing"):
        if config.intervene:
            settings = {"episodes": config.episodes, "batch": EVALUATED_TOGETHER, "seed": config.seed}
            outcome = intervention_study(make, config.intervene, sweep=config.sweep, every=config.every, **settings)
        else:
            outcome = decoding_study(make, config.decode, episodes=config.episodes, every=config.every)
    subject = config.intervene or f"{config.decode} decoded from the recurrent state"
    console.print(outcome.table(f"{agent}: {subject}"))
    if config.json:
        facts = asdict(config) | {"env": factory.env, "env_args": factory.env_args, "points": outcome.plain}
        _write_json(config.json, facts)


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


def write_json(
    config: EvaluationConfig, trained: RunConfig, factory: ActorFactory, path: Path, summaries: dict[int, Summary]
) -> None:
    """Write all results, with the agent, the settings and the machine.

    `member`, `all` and `split` describe one member; with --all, the list `members` contains these for each.
    """
    members = [summary.plain(member) for member, summary in summaries.items()]
    result = {"run": config.run, "checkpoint": path.name, "env": factory.env, "env_args": factory.env_args}
    result |= {"agent": to_dict(trained.agent), "training_seed": trained.seed, "evaluation_seed": config.seed}
    result |= {"greedy": config.greedy} | ({"imitates": trained.learner.imitate} if trained.learner.imitate else {})
    _write_json(config.json, result | ({"members": members} if config.all else members[0]))


def _write_json(file: str, facts: dict[str, Any]) -> None:
    with file_errors(f"--json: cannot write {file}"):
        Path(file).write_text(json.dumps(provenance() | facts, indent=1) + "\n")
