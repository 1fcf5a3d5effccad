"""`rl-eval`: evaluate a trained agent on episodes with random streams that training never used."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table
from rich.text import Text

from ... import zoo
from ...actors.actor import Actor
from ...actors.episodes import play
from ...actors.factory import ActorFactory
from ...agents.process import prepare_process
from ...base.errors import file_errors, refuse
from ...base.settings import setting
from ..config.command_line import make_console, parse
from ..config.plain import open_store, redacted, store_errors, to_dict
from ..config.run_config import RESUMABLE, RunConfig
from ..metrics.provenance import provenance
from ..runs.directory import as_toml
from ..runs.saved import Trainee, best_member, chosen_members, described
from ..runs.trained import ActingAgent, evaluation_envs, evaluation_factory, levels_line, make_actor, open_run
from .episodes import RATES, Estimate, Group, Summary, encoded, film, summarize
from .studies import Effect, decoding_study, intervention_study

UNROLL_LENGTH = 20
README, GIF = "README.md", "agent.gif"  # Files of a card
DIAGNOSIS = "a diagnosis of the network, not a result of reinforcement learning"
_HELP = """Evaluate a trained agent: mean return and solved rate with 95% confidence intervals, on levels sampled
with a different seed than in training, and on the test split if the environment has one."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(ActingAgent):
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
    rows = member_rows(summaries, trainees) if config.all else level_rows(summary)
    console.print(table(", ".join(filter(None, (title, path.name, "" if config.all else who))), rows))
    player = trained.learner.imitate
    notes = [f"imitates {player}: {DIAGNOSIS}"] if player else []
    notes += [f"best in training: {best}"] if best and config.checkpoint == "best" else []
    for note in (*notes, levels_line(trained, factory, config.seed)):
        console.print(note, soft_wrap=True)
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
    num_envs, hidden = evaluation_envs(factory, config.episodes), console is None or not console.is_terminal
    with (
        closing(acting(factory, weights, config, num_envs=num_envs, unroll_length=UNROLL_LENGTH)) as actor,
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
        return acting(factory, weights, config, num_envs=num_envs, first_index=first_index)

    options: dict[str, Any] = {"episodes": config.episodes, "every": config.every}
    with console.status("playing"):
        if config.intervene:
            effects = intervention_study(make, config.intervene, sweep=config.sweep, seed=config.seed, **options)
            points, title, rows = [x.plain() for x in effects], config.intervene, effect_rows(effects)
        else:
            readings = decoding_study(make, config.decode, **options)
            points, title = [x._asdict() for x in readings], f"{config.decode} decoded from the recurrent state"
            rows = [
                {"step": f"{x.step}", "episodes": f"{x.episodes:,}"}
                | {"accuracy": f"{x.accuracy:.1%} [{100 * x.low:.1f}, {100 * x.high:.1f}]", "chance": f"{x.chance:.1%}"}
                for x in readings
            ]
    console.print(table(f"{agent}: {title}", rows))
    if config.json:
        write_json(config.json, asdict(config) | {"env": factory.env, "env_args": factory.env_args, "points": points})


def write_gif(
    factory: ActorFactory, weights: dict[str, Any], config: EvaluationConfig, console: Console
) -> bytes | None:
    """Return a GIF of the first episodes and write it to --gif; None if the environment cannot be rendered."""
    try:
        with closing(acting(factory, weights, config)) as actor:
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
    with file_errors(f"--json: cannot write {file}"):
        Path(file).write_text(json.dumps(provenance() | results, indent=1) + "\n")


Row = Mapping[str, str | Text]  # Cells by column


def table(title: str, rows: Sequence[Row]) -> Table:
    """Tabulate rows; a cell that a row lacks is empty."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = (Column(name, justify="right" if k else "left", no_wrap=not k) for k, name in enumerate(names))
    result = Table(*columns, title=title, title_justify="left")
    for row in rows:
        result.add_row(*(row.get(name, "") for name in names))
    return result


def level_rows(summary: Summary) -> Sequence[Row]:
    rows = [{"levels": "all"} | cells(summary.all)]
    for name, groups in summary.split.items():
        label = name.removeprefix("num_").replace("_", " ")
        rows += [{"levels": f"{label} {value}"} | cells(group) for value, group in groups.items()]
    return rows


def member_rows(summaries: dict[int, Summary], trainees: list[Trainee]) -> Sequence[Row]:
    """A row per member, with its score in training; the number of the best one is bold."""
    rows: list[Row] = []
    for member, summary in summaries.items():
        score = trainees[member].score
        label = Text(f"{member}", "bold" if member == best_member(trainees) else "")
        rows.append({"member": label, "in training": "?" if score is None else f"{score:.2f}"} | cells(summary.all))
    return rows


def cells(group: Group) -> dict[str, str]:
    """Estimates of a group of episodes; rates come first."""
    estimates = sorted(group.estimates.items(), key=lambda item: item[0] not in RATES)
    return {"episodes": f"{group.episodes:,}"} | {name.replace("_", " "): form(name, x) for name, x in estimates}


def form(name: str, estimate: Estimate) -> str:
    """Format a mean and its interval, e.g. "91.2% [89.3, 92.8]"; a length has no interval, to fit narrow terminals."""
    mean, low, high = (100 * x for x in estimate) if name in RATES else estimate
    if name == "length":
        return f"{mean:.1f}"
    text, digits = (f"{mean:.1f}%", 1) if name in RATES else (f"{mean:.2f}", 2)
    return f"{text} [{low:.{digits}f}, {high:.{digits}f}]" if np.isfinite(low) else text


def effect_rows(effects: Sequence[Effect]) -> Sequence[Row]:
    rows: list[Row] = []
    for step, reached, outcomes in effects:
        for name, (without, changed, difference) in outcomes.items():
            number, by = ("{:.1f}%", 100) if name in RATES else ("{:.3f}", 1)
            mean, low, high = (by * x for x in difference)
            interval = f" [{low:+.3g}, {high:+.3g}]" if np.isfinite(low) else ""
            row = {"step": f"{step}", "reached by": f"{reached:,}", "outcome": name}
            row |= {"undisturbed": number.format(by * without), "disturbed": number.format(by * changed)}
            rows.append(row | {"difference": f"{mean:+.3g}{interval}"})
    return rows


def write_card(
    target: str, config: RunConfig, weights: dict[str, Any], summary: Summary, facts: dict[str, Any], gif: bytes | None
) -> str:
    """Write a card that `open_run` can read to a folder or URL; return a message. Raises EngramError. `config` is that
    of training; `facts` are of training and evaluation, e.g. the seeds."""
    settings = {name: value for name, value in to_dict(config).items() if name not in RESUMABLE}
    metadata = {"env": config.env, "core": config.agent.core}
    metadata |= {"evaluation": summary.all.plain() | facts, "provenance": provenance()}
    page = card_page(config, summary, facts, gif is not None)
    contents = zoo.files(as_toml(settings), weights, metadata) | {README: page.encode()}
    contents |= {} if gif is None else {GIF: gif}
    with store_errors(f"--card: cannot write to {redacted(target)}", target):
        store, root = open_store(target)
        store.makedirs(root, exist_ok=True)
        for name, content in contents.items():
            store.pipe_file(f"{root}/{name}", content)
    return f"wrote {redacted(target)}, which rl-eval and engram.load_agent can read"


def card_page(config: RunConfig, summary: Summary, facts: dict[str, Any], animated: bool) -> str:
    """Return the model card: YAML front matter, metrics with their intervals, and how to load the agent."""
    env, core, estimates = config.env, config.agent.core, summary.estimates
    means = {"mean_reward": estimates["return"].mean} | {x: estimates[x].mean for x in RATES if x in estimates}
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement learning"},
        "dataset": {"type": env, "name": env},
        "metrics": [{"type": name, "name": name, "value": round(mean, 6)} for name, mean in means.items()],
    }
    front = {
        "library_name": "engram",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "memory", env, core],
        "model-index": [{"name": f"{env}-{core}", "results": [result]}],
    }
    # JSON values are YAML values.
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in front.items()), "---", f"# {env} with {core}", ""]
    lines += [f"![The first episodes]({GIF})", ""] if animated else []
    lines += [f"| metric | mean of {summary.all.episodes:,} episodes | 95% interval |", "|---|---|---|"]
    for name, x in estimates.items():
        interval = f"{x.low:.4g} to {x.high:.4g}" if x.low <= x.high else ""
        lines.append(f"| {name.replace('_', ' ')} | {x.mean:.4g} | {interval} |")
    lines += ["", *(f"* {name.replace('_', ' ')}: {value}" for name, value in facts.items())]
    lines += [f"* imitates: {config.learner.imitate}, {DIAGNOSIS}"] if config.learner.imitate else []
    lines += ["", "```python", "import engram", ""]
    lines += ['agent = engram.load_agent("URL or path of this folder")', "```", ""]
    return "\n".join(lines)
