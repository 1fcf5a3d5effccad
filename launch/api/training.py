"""One run from its configuration to its end, for `rl-train` and `engram.train`; nothing is printed here."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ...actors.factory import ActorFactory
from ...actors.levels import in_words
from ...actors.pool import ActorFailureError, ActorPool, TransportDiedError
from ...agents import unique_observations
from ...agents.agent import Agent
from ...agents.threads import use_threads
from ...base.errors import user_errors
from ...base.processes import StopFlag
from ...base.sources import is_kept
from ...envs.foreign import ForeignBatch
from ...learners.curriculum import Curriculum
from ...learners.group import LearnerLossError
from ...learners.learner import Learner
from ..config.command_line import TRUST
from ..config.plain import to_dict
from ..config.run_config import RunConfig, check_memory, find_device, on_device
from ..metrics.member import Member
from ..metrics.panel import Panel
from ..metrics.writer import MetricsWriter
from ..runs.directory import CONFIG, RunDirectory, refuse_unusable
from ..runs.mirror import Mirror
from ..runs.trained import drop_code, newest_state, refuse_unfit, start_from
from ..trackers.tracker import make_tracker, tracker_class
from ..train.acting import FAILED, Acting, StoppedError, Watchdog, deal_members
from ..train.callbacks import Callbacks
from ..train.trainer import Look, Trainer

NOT_SAVED = 3
"""Exit code of a run whose last steps could not be saved."""

COMPILING = "compiling environments and networks (once per machine, about half a minute)"


@dataclass(frozen=True)
class Outcome:
    path: Path | None  # The run's directory; None if the run ended before it was created
    reason: str  # done, time limit, a signal's name, or the source of another stop request
    began: bool = True  # Whether training began
    steps: int = 0  # Steps that all members have learned from
    unsaved: int = 0  # Steps since the last checkpoint
    result: str = ""  # Mean return of the last episodes, of the best member; empty before the first episode
    failure: BaseException | None = None  # Too many failures of an actor, a failure of learners, or a second Ctrl-C

    @property
    def exit_code(self) -> int:
        if isinstance(self.failure, KeyboardInterrupt):
            return 130
        return 1 if self.failure else NOT_SAVED if self.unsaved else 0


def make_panel(config: RunConfig, path: Path | None, step: int, show: bool = True) -> Panel:
    total = config.total_steps * config.num_members
    console = None if show else Console(quiet=True, force_interactive=False)
    return Panel(total, path, config.name, console, step=step, time_limit=60 * config.time_limit)


def train(
    config: RunConfig,
    directory: RunDirectory | None,
    stop: StopFlag,
    *,
    show: bool = True,
    at_end: Callable[[Outcome], None] = lambda _: None,
    trust: bool = False,
    callbacks: Callbacks | None = None,
) -> Outcome:
    """Train until the run ends, in the open directory of a run to resume or a new one, which is created last during
    setup. `at_end` is called before the actors are stopped, which may take a while; `trust` unpickles environments that
    were saved as code."""
    if directory is None:
        refuse_unusable(config.run_dir)
    if config.track is not None:
        tracker_class(config.track)
    with Watchdog(config, stop) as watchdog:
        device = find_device(config.device, config.num_learners)
        if (learner := on_device(config.learner, device)) is not config.learner:
            config = replace(config, learner=learner)
        agents, fields = make_agents(config, config.factory(), device)
        saved = newest_state(directory) if directory else None
        if directory and saved:
            refuse_unfit(directory, saved, config, agents)
        if config.start_from is not None and not saved:
            start_from(config.start_from, agents)
        restart_episodes = saved is not None and not trust and drop_code(saved)
        factory = replace(config.factory(), resumed_at=steps_of(saved), trust_checkpoint=trust)
        with stop, Acting(config, factory, stop) as acting:
            with make_panel(config, directory.path if directory else None, steps_of(saved), show) as panel:
                if not is_kept(unique_observations.look_up):
                    panel.message(COMPILING)
                acting.begin(panel.message)
                panel.message(describe(config, agents[0], device))
                if directory:
                    begun = f"continues from step {steps_of(saved):,}"
                    panel.message(begun if saved else "starts from scratch, without a checkpoint")
                if restart_episodes:
                    code = f"environments start new episodes: their saved state is code, which only {TRUST} runs"
                    panel.message(code)
                learners = make_learners(config, agents)
                outcome = _run(config, learners, fields, acting, stop, watchdog, panel, directory, saved, callbacks)
                acting.exit_code = outcome.exit_code
            at_end(outcome)
        return outcome


def _run(
    config: RunConfig,
    learners: Sequence[Learner],
    fields: tuple[str, ...],
    acting: Acting,
    stop: StopFlag,
    watchdog: Watchdog,
    panel: Panel,
    directory: RunDirectory | None,
    saved: dict[str, Any] | None,
    callbacks: Callbacks | None,
) -> Outcome:
    try:
        panel.phase("making environments" if config.in_process else "waiting for the actors")
        with user_errors():
            pool = acting.start()
        panel.phase("sampling the first batch")
        use_threads(config.num_learner_threads)
        plain = to_dict(config)
        with (
            directory or RunDirectory.create(config.run_dir, plain, name=config.name) as directory,
            ExitStack() as files,
        ):
            panel.run_path = directory.path
            trainer = make_trainer(config, learners, fields, pool, directory, panel, saved, files, callbacks)
            directory.rewrite_config(plain)
            watchdog.follow(trainer)
            try:
                reason = trainer.run(stop)
            except TransportDiedError as problem:
                with trainer.lock:
                    watchdog.end(str(problem), FAILED)
            finally:
                watchdog.close()
        result = result_of(trainer.members[trainer.best.member if trainer.best else 0])
        return Outcome(directory.path, reason, steps=trainer.steps, unsaved=trainer.unsaved, result=result)
    except StoppedError:
        watchdog.close()
        return Outcome(path=panel.run_path, reason=stop.reason, began=False)
    except (ActorFailureError, LearnerLossError, KeyboardInterrupt) as problem:
        return Outcome(path=panel.run_path, reason=type(problem).__name__, failure=problem)


def result_of(member: Member) -> str:
    """Means of the last training episodes and the last evaluation as text; empty before the first episode."""
    means = member.accumulator.window()
    parts = [f"return {means['return']:.3g}"] if "return" in means else []
    parts += [f"solved {means['solved']:.1%}"] if "solved" in means else []
    shown = [f"{', '.join(parts)} (last {member.accumulator.episodes:,} training episodes)"] if parts else []
    if member.evaluated is not None:
        shown.append(f"return {member.evaluated:.3g} ({member.config.eval_episodes:,} evaluation episodes)")
    return "; ".join(shown)


def make_agents(config: RunConfig, factory: ActorFactory, device: torch.device) -> tuple[list[Agent], tuple[str, ...]]:
    """Create an initialized agent per member; return them with the names of the environment's episode fields."""
    agents: list[Agent] = []
    with user_errors(), closing(factory.make_batch(num_envs=1)) as batch:
        if isinstance(batch, ForeignBatch):
            batch.check()
        if config.levels.curriculum:
            Curriculum(config.levels, batch.episode_fields, 0)
        factory.check_levels(batch)
        check_memory(config, factory, batch)
        for member in range(config.num_members):
            # The first member has the same weights as a run without a population.
            sequence = np.random.SeedSequence(config.seed, spawn_key=(member,))
            torch.manual_seed(int(sequence.generate_state(1)[0]) if member else config.seed)
            agents.append(factory.make_agent(batch).to(device))
    return agents, tuple(batch.episode_fields)


def make_learners(config: RunConfig, agents: Sequence[Agent]) -> list[Learner]:
    return [Learner(agent, config.learner, config.total_steps) for agent in agents]


def make_trainer(
    config: RunConfig,
    learners: Sequence[Learner],
    fields: tuple[str, ...],
    pool: ActorPool,
    directory: RunDirectory,
    panel: Panel,
    saved: dict[str, Any] | None,
    files: ExitStack,
    callbacks: Callbacks | None = None,
) -> Trainer:
    """Create the trainer of a run, at its beginning or in the state `saved`; `files` closes its writers."""
    members: list[Member] = []
    for number, learner in enumerate(deal_members(config, learners, pool, panel.message, bool(callbacks))):
        folder = directory.member(number).path if config.population else directory.path
        steps = saved["members"][number]["learner"]["steps"] if saved else 0
        tracker = make_tracker(config.track, directory.path, folder, to_dict(config)) if config.track else None
        writer = files.enter_context(MetricsWriter(folder, steps, panel.message, tracker))
        members.append(Member(number, config, learner, writer, pool.num_actors, fields))
    population = None
    if config.population:
        from ..population.host import PopulationHost  # statistics and plots take seconds to import

        population = PopulationHost(config, members, directory, panel, steps_of(saved) if saved else None, files)
    mirror = None
    if config.checkpoint_url:
        copied = directory.path / CONFIG, directory.metrics_file, directory.population_file
        mirror = Mirror(config.checkpoint_url, copied, config.keep_checkpoints, panel.message)
        files.enter_context(closing(mirror))
    looks: list[Look] = []
    if config.look_every:
        from ..insight.page import Watcher  # plots are imported only if needed

        looks.append(Watcher(config).look)
    if config.video_every:
        from ..evaluate.episodes import Camera

        looks.append(Camera(config).look)
    trainer = Trainer(config, members, pool, directory, panel, population, mirror, callbacks, looks)
    if saved:
        trainer.load_state(saved)
    if config.num_learners > 1 and not population:
        from ...learners.remote.team import Team  # imports Ray

        assert isinstance(pool, Team)
        members[0].team = pool
        pool.connect(members[0].learner)
    if population and not saved:
        population.begin()
    for member in members:
        if member.writer is not None:
            member.writer.hparams(replace(config, learner=member.learner.config) if member.settings else config)
    return trainer


def steps_of(saved: dict[str, Any] | None) -> int:
    return sum(member["learner"]["steps"] for member in saved["members"]) if saved else 0


def describe(config: RunConfig, agent: Agent, device: torch.device) -> str:
    parameters = sum(p.numel() for p in agent.parameters())
    members = f"{config.population} members ({config.pbt.scheme}) of " if config.population else ""
    actors = "as many as fit" if config.fixed_actors is None else str(config.fixed_actors)
    where = "in this process" if config.in_process else "in actor processes, 1 torch thread each"
    text = (
        f"{config.env} with {config.agent.core}: {members}{parameters:,} parameters, "
        f"{config.learner.algorithm} on {device}\n"
        f"{actors} x {config.actor_envs} environments {where}; "
        f"updates of {config.unroll_length} steps x {config.columns} environments, seed {config.seed}"
    )
    if config.levels.curriculum:
        scores = ", ".join(f"{score:g}" for score in config.levels.scores)
        stages = "; ".join(map(in_words, config.levels.stages))
        text += f"\nstages: {stages} (next at {config.levels.curriculum_measure} {scores})"
    return text
