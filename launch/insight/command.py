"""`rl-look`: a page that shows an episode of a trained agent, with its recurrent state at every step."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...actors.factory import ActorFactory
from ...agents.inside import panels
from ...agents.process import prepare_process
from ...base.errors import check_name, file_errors, refuse, user_errors
from ...base.files import replace_file
from ...base.settings import setting
from ..config.command_line import make_console, parse
from ..runs.saved import chosen_members, described
from ..runs.trained import ActingAgent, evaluation_seed, make_actor, open_run
from .page import MOST_STEPS, record, seen_panels, written

MOST_LEVELS = 4096  # Number of levels that are searched for the requested facts

_HELP = """Inspect the recurrent state of a trained agent: write a page that plays an episode step by step, with the
board, the observation, policy and value, and the recurrent state."""


@dataclass(frozen=True, kw_only=True)
class LookConfig(ActingAgent):
    html: str = setting("look.html", file="")
    """File for the page; it needs no other file and no network."""
    level: dict[str, Any] = field(default_factory=dict[str, Any])
    """Show the first environment whose first episode starts with FACT=VALUE, such as goal=right."""


def main(arguments: Sequence[str]) -> int:
    config = parse(LookConfig, arguments, "rl-look", _HELP)
    prepare_process(1)
    console = make_console()
    trained = open_run(config.run, config.checkpoint)
    factory, weights = trained.factory(config.env_args), trained.weights(config.member)
    index = first_level(factory, config)
    actor = make_actor(factory, weights, seed=config.seed, greedy=config.greedy, first_index=index)
    with closing(actor), console.status("playing"):
        recording = record(actor)
    if not recording.complete:
        console.print(f"the episode is cut off after {MOST_STEPS} steps")
    title = f"{factory.env} with {trained.config.agent.core}"
    chosen = chosen_members(trained.trainees, config.member, False)[0]
    who = [text for text in (trained.checkpoint.name, described(trained.trainees, chosen)) if text]
    about = " · ".join([*who, f"evaluation seed {config.seed}, environment {index}", config.run])
    shown = [*seen_panels(recording), *panels(actor.agent.core, recording.trace)]
    text = written(title, about, recording, shown)
    with file_errors(f"--html: cannot write {config.html}"):
        replace_file(Path(config.html), text.encode())
    console.print(f"wrote {config.html} ({len(text) / 1e6:.1f} MB): open it in a browser")
    return 0


def first_level(factory: ActorFactory, config: LookConfig) -> int:
    """Index of the first environment in the evaluation whose start matches --level. Raises EngramError."""
    if not config.level:
        return 0
    with user_errors("--level"), closing(factory.make_batch(num_envs=1)) as one:
        names = getattr(one, "fact_values", {})
        refuse(not names, f"environment {factory.env} has no facts about its levels")
        requested = dict(config.level)
        for name, value in requested.items():
            check_name("fact", name, names)
            if options := names[name]:
                refuse(str(value) not in options, f"{name} is {value!r}; allowed: {', '.join(options)}")
                requested[name] = options.index(str(value))
    with closing(factory.make_batch(num_envs=MOST_LEVELS)) as batch:
        batch.reset(seed=evaluation_seed(config.seed))  # pyright: ignore
        facts: Any = batch.facts()  # pyright: ignore
    fits = np.logical_and.reduce([facts[name] == value for name, value in requested.items()])
    refuse(not fits.any(), f"--level: none of {MOST_LEVELS} levels begins with {config.level}")
    return int(fits.argmax())
