"""`rl-eval`: how well a trained agent does in episodes with randomness that training never used."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import Progress

from ... import zoo
from ...actors.actor import Actor
from ...actors.episodes import play
from ...actors.factory import ActorFactory
from ...agents.process import prepare_process
from ...base.messages import SEEDS, check_fields, check_new_file
from ..metrics.provenance import provenance
from ..run.command_line import UsageError, make_console, parse, run_command
from ..run.config import RunConfig, to_dict
from ..run.trained import EVALUATED_TOGETHER, evaluation_envs, evaluation_factory, levels_line, make_actor, open_run
from ..run.trainees import chosen_members, described
from .card import Card, gif_of, write_card
from .episodes import Summary, summarize
from .gif import record
from .offline import minari_module, write_dataset
from .report import plain_member
from .study import decoding_study, intervention_study
from .tables import show, show_members, zoo_table

UNROLL_LENGTH = 20
DIAGNOSIS = "a diagnosis of the network, not a result of reinforcement learning"
_HELP = """Evaluate a trained agent: mean return and solved rate with 95% confidence intervals, on levels drawn with
another seed than those of training, and on the test split where the environment has one."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The agent to evaluate, and how."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run directory, zoo:NAME for an agent that comes with engram, zoo: for a list of them, or folder or URL of a
    card."""
    episodes: int = 1000
    """Episodes to play."""
    checkpoint: str = "latest"
    """Which checkpoint: latest, best (of the highest mean return in training) or the number of its step."""
    seed: int = 0
    """Seed of levels and actions, 0..2**64-1; no seed here repeats the random streams of training."""
    member: int = -1
    """Which member of a population; -1 is the one with the highest mean return in training."""
    all: bool = False
    """Every member of a population, each in a row."""
    greedy: bool = False
    """Take the likeliest action instead of sampling one from the policy. Sampling is what was trained."""
    env_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Parameters of the environment that differ from the training run's, KEY=VALUE. The graphs of pomdp-graph are those
    of the test split unless split=train is given."""
    gif: str = ""
    """File for a moving picture of the first episodes: what the agent sees beside the whole board, if it is not all."""
    gif_episodes: int = 3
    """Episodes in it."""
    intervene: str = ""
    """Change the memory and compare with the same episodes undisturbed: wipe@STEP, swap@STEP, freeze@STEP:END or
    noise@STEP:SIGMA, with :PART=WHICH for a part of it, such as wipe@120:slot=2 (docs/how-to/insight.md)."""
    sweep: bool = False
    """With --intervene: also at every later step, --every steps apart."""
    decode: str = ""
    """Fact of the environment to be read from the memory by a linear decoder, over the steps of an episode;
    FACT:PART=WHICH from a part of it, such as key:slot=2."""
    every: int = 10
    """Steps from one point of --sweep or --decode to the next."""
    picture: str = ""
    """File for a picture of --sweep or --decode."""
    json: str = ""
    """File for everything found out."""
    card: str = ""
    """Folder or URL to share the agent in: a Hugging Face model card, weights, configuration, metrics and a GIF. Every
    command reads it as it reads a run directory."""
    minari: str = ""
    """Name of a Minari dataset, such as t-maze/gru-v0, for the episodes."""

    def __post_init__(self) -> None:
        if self.all and self.member >= 0:
            raise ValueError(f"all and member {self.member} are both given; allowed: one of them")
        check_fields(self, episodes=(1, 2**53), seed=SEEDS, gif_episodes=(1, None), member=(-1, None), every=(1, None))
        if self.intervene and self.decode:
            raise ValueError("intervene and decode are both given; allowed: one of them")
        if self.all and (self.intervene or self.decode):
            raise ValueError("all is given with a study of the memory; allowed there: one member")
        if self.all and (self.card or self.minari):
            raise ValueError("all is given with card or minari; allowed there: one member")
        if self.sweep and not self.intervene:
            raise ValueError("sweep is given without intervene, which it repeats")
        if self.picture and not (self.sweep or self.decode):
            raise ValueError(f"picture is {self.picture!r}; allowed with sweep or decode")
        for name, ending in (("gif", ".gif"), ("json", ""), ("picture", "")):
            check_new_file(name, getattr(self, name), ending)


def main(arguments: Sequence[str]) -> int:
    """Evaluate as the words say; returns the exit code."""
    config = parse(EvaluationConfig, arguments, "rl-eval", _HELP)
    prepare_process(1)
    console = make_console()
    if config.run == zoo.PREFIX:
        console.print(zoo_table())
        return 0
    trained, path, trainees, best = open_run(config.run, config.checkpoint)
    factory = evaluation_factory(trained, config.env_args)
    chosen = chosen_members(trainees, config.member, config.all)
    if config.gif:
        shown = chosen_members(trainees, config.member, False)[0]
        with closing(acting(factory, trainees[shown].weights, config, num_envs=1, unroll_length=1)) as actor:
            console.print(write_gif(actor, config))
    if config.minari:
        minari, count = minari_module(config.minari), evaluation_envs(factory, config.episodes)
        weights, about = trainees[chosen[0]].weights, f"{factory.env} {factory.env_args} with {trained.agent.core}"
        with closing(acting(factory, weights, config, num_envs=count, unroll_length=UNROLL_LENGTH)) as actor:
            console.print(write_dataset(minari, config.minari, actor, config.episodes, about))
    if config.intervene or config.decode:
        study(factory, trainees[chosen[0]].weights, config, f"{factory.env} with {trained.agent.core}", console)
        return 0
    summaries = {number: evaluated(factory, trainees[number].weights, config, console) for number in chosen}
    title = f"{factory.env} with {trained.agent.core}, {path.name}"
    if config.all:
        show_members(summaries, trainees, title, console)
    else:
        who = described(trainees, chosen[0])
        show(summaries[chosen[0]], f"{title}{who and ', '}{who}", console)
    if trained.learner.imitate:
        console.print(f"imitates {trained.learner.imitate}: {DIAGNOSIS}", highlight=False, soft_wrap=True)
    if best:
        console.print(f"best in training: {best}", highlight=False, soft_wrap=True)
    console.print(levels_line(trained, factory, config.seed), highlight=False, soft_wrap=True)
    if config.json:
        write_json(config, trained, factory, path, summaries)
    if config.card:
        weights, summary = trainees[chosen[0]].weights, summaries[chosen[0]]
        facts = {"checkpoint": path.name, "training_seed": trained.seed}
        facts |= {"imitates": f"{trained.learner.imitate}, {DIAGNOSIS}"} if trained.learner.imitate else {}
        facts |= {"evaluation_seed": config.seed, "greedy": config.greedy}
        with closing(acting(factory, weights, config, num_envs=1, unroll_length=1)) as actor:
            film = gif_of(actor, config.gif_episodes)
        card = Card(trained, factory.env_args, weights, summary, facts, film)
        console.print(write_card(config.card, card))
    return 0


def evaluated(factory: ActorFactory, weights: dict[str, Any], config: EvaluationConfig, console: Console) -> Summary:
    """Summary of the episodes of these weights; the same levels for all weights."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("episodes", total=config.episodes)
        return evaluate(factory, weights, config, lambda done: progress.update(bar, completed=done))


def evaluate(
    factory: ActorFactory,
    weights: dict[str, Any],
    config: EvaluationConfig,
    report: Callable[[int], None] = lambda _: None,
) -> Summary:
    """Summary of the episodes of these weights; `report` as in `play`."""
    num_envs = evaluation_envs(factory, config.episodes)
    with closing(acting(factory, weights, config, num_envs=num_envs, unroll_length=UNROLL_LENGTH)) as actor:
        episodes = play(actor, config.episodes, report)
    level_fields, fixed = (getattr(actor.batch, name, ()) for name in ("level_fields", "fixed_levels"))
    return summarize(episodes, actor.batch.episode_fields, level_fields, by_environment=bool(fixed))


def acting(
    factory: ActorFactory,
    weights: dict[str, Any],
    config: EvaluationConfig,
    *,
    num_envs: int,
    unroll_length: int,
    first_index: int = 0,
) -> Actor:
    """An actor with these weights that plays as the words say."""
    return make_actor(
        factory,
        weights,
        seed=config.seed,
        greedy=config.greedy,
        num_envs=num_envs,
        unroll_length=unroll_length,
        first_index=first_index,
    )


def study(
    factory: ActorFactory, weights: dict[str, Any], config: EvaluationConfig, agent: str, console: Console
) -> None:
    """The study of the memory that --intervene or --decode asks for: shown, and written to --json and --picture."""

    def make(num_envs: int, first_index: int) -> Actor:
        return acting(factory, weights, config, num_envs=num_envs, unroll_length=1, first_index=first_index)

    title = f"{agent}: {config.intervene or f'{config.decode} read from the memory'}"
    with console.status("playing"):
        if config.intervene:
            found = intervention_study(
                make,
                config.intervene,
                episodes=config.episodes,
                batch=EVALUATED_TOGETHER,
                sweep=config.sweep,
                every=config.every,
                seed=config.seed,
            )
        else:
            found = decoding_study(make, config.decode, episodes=config.episodes, every=config.every)
    found.show(title, console)
    try:
        if config.picture:
            found.draw(title, Path(config.picture))
        if config.json:
            written = asdict(config) | {"env": factory.env, "env_args": factory.env_args, "points": found.plain()}
            Path(config.json).write_text(json.dumps(provenance() | written, indent=1) + "\n")
    except OSError as problem:
        raise UsageError(f"cannot write {problem.filename}: {problem.strerror}") from problem


def write_gif(actor: Actor, config: EvaluationConfig) -> str:
    """Make the moving picture that `--gif` asks for, and the line about it."""
    try:
        record(actor, Path(config.gif), config.gif_episodes)
        return f"wrote {config.gif}"
    except ValueError as problem:
        return f"no {config.gif}: {problem}"
    except OSError as problem:
        raise UsageError(f"--gif: cannot write {config.gif}: {problem.strerror}") from problem


def write_json(
    config: EvaluationConfig, trained: RunConfig, factory: ActorFactory, path: Path, summaries: dict[int, Summary]
) -> None:
    """Everything that was found out, with what it was found out about and on which machine.

    `member`, `all` and `split` are of one member; with --all there is a list of them under `members`.
    """
    members = [plain_member(number, summary) for number, summary in summaries.items()]
    result = provenance() | {
        "run": config.run,
        "checkpoint": path.name,
        "env": factory.env,
        "env_args": factory.env_args,
        "agent": to_dict(trained.agent),
        "training_seed": trained.seed,
        "evaluation_seed": config.seed,
        "greedy": config.greedy,
    }
    result |= {"imitates": trained.learner.imitate} if trained.learner.imitate else {}
    result |= {"members": members} if config.all else members[0]
    try:
        Path(config.json).write_text(json.dumps(result, indent=1) + "\n")
    except OSError as problem:
        raise UsageError(f"--json: cannot write {config.json}: {problem.strerror}") from problem


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `rl-eval`."""
    run_command("rl-eval", main, arguments)
