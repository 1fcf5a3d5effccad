"""`rl-train`: train an agent with memory, from a command line to a run directory."""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...actors.factory import ActorFactory
from ...actors.failures import ActorFailureError
from ...actors.pool import ActorPool
from ...agents.agent import Agent
from ...agents.process import prepare_process
from ...agents.threads import use_threads
from ...envs.foreign import ForeignBatch
from ...envs.registration import is_world
from ...learners import checkpoints
from ...learners.learner import Learner
from ..metrics.panel import Panel
from ..metrics.writer import MetricsWriter
from ..population.panel import PopulationPanel
from ..run.command_line import UsageError, make_console, run_command, value_of, without
from ..run.config import RunConfig, to_dict
from ..run.device import find_device
from ..run.presets import is_easier_than_paper
from ..run.run_directory import CONFIG, RunDirectory, RunDirectoryError, refuse_unusable
from ..run.run_flags import LIST, TRUST, changed_from_preset, parse_run
from ..run.stop_flag import StopFlag
from ..run.urls import is_url, redacted
from .acting import Acting, StoppedError
from .member import Member
from .resume import drop_code, is_own, newest_state, resumed_config
from .sizes import check_counts, check_memory
from .supervisor import supervise
from .trainer import Trainer

if TYPE_CHECKING:
    from .mirror import Mirror

NOT_SAVED = 3
"""Exit code of a run whose last steps could not be saved."""


def main(arguments: Sequence[str]) -> int:
    """Train as the words say; returns the exit code."""
    sys.path.append(os.getcwd())  # so that module:Class finds a user's own files
    if LIST in arguments:
        from .listing import show

        show(make_console())
        return 0
    resume = value_of("--resume", arguments)
    try:
        if value_of("--restarts", arguments) is not None:
            return supervise(arguments)
        trust, arguments = TRUST in arguments, [word for word in arguments if word != TRUST]
        if resume is None:
            config = parse_run(arguments)
            refuse_taken(config.checkpoint_url)
            return train(config, None, changed=changed_from_preset(config, arguments))
        words = without(arguments, ("--resume",))
        if is_url(resume):
            from .mirror import fetch

            resume = str(fetch(resume, value_of("--run-dir", words)))
            words = without(words, ("--run-dir",))
        with RunDirectory.open(Path(resume)) as directory:
            return train(resumed_config(directory, words), directory, trust)
    except (RunDirectoryError, checkpoints.CheckpointError) as problem:
        raise UsageError(str(problem)) from problem


def refuse_taken(url: str | None) -> None:
    """Raise UsageError if a run's checkpoints are at `url` already."""
    if url is not None:
        from .mirror import holds_run

        if holds_run(url):
            raise UsageError(
                f"--checkpoint-url {redacted(url)} holds a run; to go on with it: --resume {redacted(url)}"
            )


def train(config: RunConfig, directory: RunDirectory | None, trust: bool = False, changed: str = "") -> int:
    """Run a configuration to its end, in a new run directory or, to resume, in one that exists.

    A new directory is made when everything else is ready, so that a start that fails leaves nothing behind. With
    `trust`, environments that were saved as code are unpickled. `changed` is what differs from the preset, in words.
    """
    prepare_process(1)
    plain = to_dict(config)
    if directory is None:
        refuse_unusable(config.run_dir, plain)
    factory, device = config.factory(), find_device(config.device)
    if not compiled_before():
        print("the first run compiles worlds and networks, for about half a minute; later ones do not", flush=True)
    learners, fields = make_learners(config, factory, device)
    saved = newest_state(directory, config) if directory else None
    if directory and config.population:
        check_population(directory, saved)
    if config.start_from and not saved:
        from .warm_start import start_from  # evaluation is imported along with it

        start_from(config.start_from, [learner.agent for learner in learners])
    begin_anew = saved is not None and not trust and drop_code(saved)
    factory = replace(factory, resumed_at=steps_of(saved), trust_checkpoint=trust)
    with StopFlag() as stop, Acting(config, factory, stop) as acting:
        with make_panel(config, directory.path if directory else None, steps_of(saved)) as panel:
            panel.message(describe(config, learners[0], device, changed))
            if directory:
                panel.message(
                    f"goes on from step {steps_of(saved):,}" if saved else "begins anew, without a checkpoint"
                )
            if begin_anew:
                panel.message(f"environments start new episodes: their saved state is code, which only {TRUST} runs")
            try:
                pool = acting.start(panel.message)
                use_threads(config.num_learner_threads)
                old, directory = directory, directory or RunDirectory.create(config.run_dir, plain, name=config.name)
                panel.run_path = directory.path
                with directory, ExitStack() as files:
                    trainer = make_trainer(config, learners, fields, pool, directory, panel, saved, files)
                    if old:
                        directory.rewrite_config(plain)
                    with acting.watch(trainer, directory.path):
                        reason = trainer.run(stop)
                acting.exit_code = NOT_SAVED if trainer.unsaved else 0
                words = farewell(config, directory.path, reason, trainer.steps, trainer.unsaved)
            except StoppedError:
                go_on = f"; continue with: rl-train --resume {directory.path}" if directory else ""
                acting.exit_code, words = 0, f"stopped ({stop.reason}) before training began{go_on}"
            except ActorFailureError as problem:
                print(f"rl-train: {problem}", file=sys.stderr)
                words = f"continue with: rl-train --resume {panel.run_path}"
            except KeyboardInterrupt:
                acting.exit_code = 130
                words = f"interrupted in an update, which is lost; continue with: rl-train --resume {panel.run_path}"
        print(words, flush=True)  # before the actors' end, which may take a while
    return acting.exit_code


def compiled_before() -> bool:
    """Whether some compiled code is on disk, where numba keeps it."""
    place = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parents[2] / "agents")
    return next(place.rglob("*.nbi"), None) is not None


def make_learners(
    config: RunConfig, factory: ActorFactory, device: torch.device
) -> tuple[list[Learner], tuple[str, ...]]:
    """A learner with a freshly initialised agent for each member, and the names of the world's episode fields."""
    try:
        check_counts(config)
        batch = factory.make_batch(num_envs=1)
        if isinstance(batch, ForeignBatch):
            batch.check()
        check_memory(config, factory, batch)
        agents: list[Agent] = []
        for member in range(config.num_members):
            torch.manual_seed(member_seed(config.seed, member))
            agents.append(factory.make_agent(batch).to(device))
    except (ValueError, TypeError) as problem:
        raise UsageError(str(problem)) from problem
    fields = tuple(batch.episode_fields)
    batch.close()
    return [Learner(agent, config.learner, config.total_steps) for agent in agents], fields


def member_seed(seed: int, member: int) -> int:
    """Seed of a member's first weights; the first member has those of a run without a population."""
    return seed if member == 0 else int(np.random.SeedSequence(seed, spawn_key=(member,)).generate_state(1)[0])


def make_trainer(
    config: RunConfig,
    learners: Sequence[Learner],
    fields: tuple[str, ...],
    pool: ActorPool,
    directory: RunDirectory,
    panel: Panel,
    saved: dict[str, Any] | None,
    files: ExitStack,
) -> Trainer:
    """The run, at its beginning or where `saved` left it; `files` closes what it writes to."""
    members: list[Member] = []
    for number, learner in enumerate(learners):
        folder = directory.member(number).path if config.population else directory.path
        steps = saved["members"][number]["learner"]["steps"] if saved else 0
        writer = files.enter_context(MetricsWriter(folder, steps, panel.message))
        members.append(Member(number, config, learner, writer, pool.num_actors, fields))
    population, report = None, panel.update
    if config.population:
        from ..population.run import add_population  # statistics and pictures take seconds to import

        population, report = add_population(config, members, fields, directory, panel, steps_of(saved), files)
    mirror = files.enter_context(make_mirror(config, directory, panel)) if config.checkpoint_url else None
    kept = checkpoints.Kept(directory.checkpoints, lambda path: is_own(path, config))
    watcher = None
    if config.look_every:
        from ..look.watching import Watcher  # pictures are imported where they are wanted

        watcher = Watcher(config)
    trainer = Trainer(config, members, pool, directory, report, panel.message, population, mirror, kept, watcher)
    if saved:
        load(trainer, saved)
    elif population:
        population.begin()
    for member in members:
        member.show_settings()
    return trainer


def load(trainer: Trainer, saved: dict[str, Any]) -> None:
    """Continue from a checkpoint's state. Raises CheckpointError if it is not one of this run's."""
    try:
        trainer.load_state(saved)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as problem:
        what = f"{type(problem).__name__}: {problem}"
        raise checkpoints.CheckpointError(
            f"{trainer.directory.path}: its newest checkpoint holds no state of this run ({what})"
        ) from problem


def make_panel(config: RunConfig, path: Path | None, step: int) -> Panel:
    """The panel that shows the run in a terminal."""
    kind = PopulationPanel if config.population else Panel
    total = config.total_steps * config.num_members
    return kind(total, path, config.name, step=step, time_limit=60 * config.time_limit)


def check_population(directory: RunDirectory, saved: dict[str, Any] | None) -> None:
    """Raise RunDirectoryError if the log of a population that has a checkpoint is damaged."""
    if saved:
        from ..population.history import check

        check(directory)


def make_mirror(config: RunConfig, directory: RunDirectory, panel: Panel) -> "Mirror":
    """The mirror that copies this run's checkpoints to --checkpoint-url."""
    from .mirror import Mirror  # its file systems are imported where they are wanted

    assert config.checkpoint_url is not None
    return Mirror(config.checkpoint_url, directory.path / CONFIG, config.keep_checkpoints, panel.message)


def steps_of(saved: dict[str, Any] | None) -> int:
    """Environment steps that all members had learnt from when a checkpoint was written."""
    return sum(member["learner"]["steps"] for member in saved["members"]) if saved else 0


def describe(config: RunConfig, learner: Learner, device: torch.device, changed: str = "") -> str:
    """The run in a few lines, for the top of the screen."""
    parameters = sum(p.numel() for p in learner.agent.parameters())
    members = f"{config.population} members ({config.pbt.scheme}) of " if config.population else ""
    actors = "as many as fit" if config.fixed_actors is None else str(config.fixed_actors)
    where = "in this process" if config.local else "in actor processes, 1 torch thread each"
    lines = [
        f"{config.env} with {config.agent.core}: {members}{parameters:,} parameters, "
        f"{config.learner.algorithm} on {device}",
        f"{actors} x {config.factory().num_envs} environments {where}; "
        f"updates of {config.unroll_length} steps x {config.columns} environments, seed {config.seed}",
    ]
    return "\n".join([*lines, changed] if changed else lines)


def farewell(config: RunConfig, path: Path, reason: str, steps: int, unsaved: int = 0) -> str:
    """The outcome and the commands to run next; `unsaved` steps are in no checkpoint."""
    kept = f"all of it is in {path}" if not unsaved else f"the last {unsaved:,} of them are in no checkpoint of {path}"
    lines = [f"{'finished' if reason == 'done' else f'stopped ({reason})'} after {steps:,} steps; {kept}"]
    if reason != "done" or unsaved:
        lines.append(f"  continue        rl-train --resume {path}")
    picture = f" --gif {path}/episode.gif" if is_world(config.env) else ""  # other worlds may draw nothing
    lines.append(f"  evaluate        rl-eval {path} --episodes 1000{picture}")
    lines.append(f"  curves          tensorboard --logdir {path.parent}")
    if config.population:
        lines.append(f"  population      rl-population {path}; tensorboard --logdir {path}, page #custom_scalars")
    if is_easier_than_paper(config.env, config.agent.core, config.env_args):
        lines.append(f"  paper's task    rl-train --env {config.env} --core {config.agent.core}")
    return "\n".join(lines)


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `rl-train`."""
    run_command("rl-train", main, arguments)
