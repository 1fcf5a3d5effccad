"""Runs from their directories: how they are resumed, and their agents on levels that training did not use."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import tyro
from torch import nn

from ... import zoo
from ...actors.actor import Actor
from ...actors.factory import ActorFactory
from ...agents.agent import Agent
from ...base.errors import SEEDS, EngramError, refuse, user_errors
from ...base.settings import Settings, setting
from ...learners import checkpoints
from ..config.command_line import value_of
from ..config.plain import SECRET, differences, from_dict, is_url, open_store, redacted, store_errors
from ..config.run_config import RESUMABLE, RunConfig
from ..config.run_flags import parse_run
from . import saved
from .directory import CONFIG, RunDirectory
from .saved import Trainee, best_member, chosen_members, difference, take_weights, trainees_of

EVALUATION = 0xE7A1  # Key of the random streams of evaluations, which no training run with any seed uses
NO_EFFECT = ("--preset", "--config", "--run-dir")  # Flags that apply to a new run only, not with --resume
EVALUATED_TOGETHER = 128  # Environments of an evaluation; more do not make inference faster


@dataclass(frozen=True, kw_only=True)
class AgentChoice(Settings):
    """Flags that select a trained agent, shared by several commands."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run directory, zoo:NAME for an agent included in engram, or folder or URL of a card."""
    checkpoint: str = "latest"
    """Checkpoint: latest, best (highest mean return in training) or a step."""
    member: int = setting(-1, (-1, None))
    """Member of a population; -1 is the one with the highest mean return in training."""
    env_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Parameters of the environment that differ from the training run's, KEY=VALUE."""


@dataclass(frozen=True, kw_only=True)
class ActingAgent(AgentChoice):
    """A trained agent, and how it acts."""

    seed: int = setting(0, SEEDS)
    """Seed of levels and actions, 0..2**64-1; no seed here repeats the random streams of training."""
    greedy: bool = False
    """Take the most likely action instead of sampling one; training optimizes the sampled policy."""


class Trained(NamedTuple):
    """A run's configuration and one of its checkpoints."""

    config: RunConfig
    checkpoint: Path
    trainees: list[Trainee]  # The members in the checkpoint
    best: saved.Best | None = None  # The best checkpoint of the run, if it has one

    def weights(self, member: int) -> dict[str, Any]:
        return self.trainees[chosen_members(self.trainees, member, False)[0]].weights

    def factory(self, env_args: dict[str, Any]) -> ActorFactory:
        """Return the factory of the training environments, with these parameters changed."""
        return replace(self.config.factory(), imitate="", env_args=self.config.env_args | env_args)


def open_run(path: str, checkpoint: str) -> Trained:
    """Open the run at `path` (or `zoo:NAME`, or the folder or URL of a card) and the selected checkpoint."""
    if has_one_checkpoint(path):
        refuse(checkpoint != "latest", f"checkpoint is {checkpoint!r}; allowed for {path}, which has only one: latest")
        with store_errors(f"{redacted(path)} contains no readable agent", path):
            if path.startswith(zoo.PREFIX):
                card = zoo.load(path.removeprefix(zoo.PREFIX))
            else:
                files, root = open_store(path)
                card = zoo.read(Path(Path(root).name), lambda name: files.cat_file(f"{root}/{name}"))
            return Trained(from_dict(RunConfig, card.config), card.folder, [Trainee(card.weights, None)])
    run = RunDirectory.open(path, lock=False)
    config, (folder, state) = run_config(run), find_checkpoint(run, checkpoint)
    return Trained(config, folder, trainees_of(state), state["best"])


def has_one_checkpoint(path: str) -> bool:
    """Whether `path` is an agent of the zoo, or a folder or URL with a card, rather than a run directory."""
    return path.startswith(zoo.PREFIX) or is_url(path) or (Path(path) / zoo.FACTS).is_file()


def imitated(path: str) -> str:
    """Find the player that a run imitates, directly or through the run that it started from; "" for none."""
    try:
        config = open_run(path, "latest").config
    except EngramError:
        return ""  # the run may no longer exist
    return config.learner.imitate or (config.start_from and imitated(config.start_from)) or ""


def start_from(run: str, agents: Iterable[Agent]) -> None:
    """Load weights for `--start-from RUN` into agents: the best member's, in the best or else the newest checkpoint."""
    with user_errors("" if has_one_checkpoint(run) else "--start-from"):
        trained = open_run(run, "latest")
        trained = open_run(run, "best") if trained.best else trained
    for agent in agents:
        take_weights(agent, trained.trainees[best_member(trained.trainees)].weights, trained.checkpoint)


def run_config(run: RunDirectory) -> RunConfig:
    values = run.config()
    refuse("task" in values and "env" not in values, f"{run.path} is a run of rl-probe; expected: a run of rl-train")
    with user_errors(str(run.path / CONFIG)):
        # Runs that recorded no precision used float32.
        return from_dict(RunConfig, values | {"learner": {"precision": "float32"} | values.get("learner", {})})


def fixed_differences(old: RunConfig, new: RunConfig) -> list[tuple[str, Any, Any]]:
    """Find differences between two configurations (setting, old, new) that are not allowed within one run."""
    # Settings added to an algorithm after a run was saved have their defaults.
    old, new = (replace(config, learner=config.learner.resolved()) for config in (old, new))
    return [change for change in differences(old, new) if change[0] not in RESUMABLE]


def resumed_by_words(directory: RunDirectory, arguments: Sequence[str]) -> RunConfig:
    without_effect = [flag for flag in NO_EFFECT if value_of(flag, arguments) is not None]
    return resumed_config(directory, lambda base: parse_run(arguments, base=base), without_effect)


def resumed_config(
    directory: RunDirectory, change: Callable[[RunConfig], RunConfig], no_effect: Sequence[str] = ()
) -> RunConfig:
    """Return a run's configuration after `change`, which applies the user's settings; none may be in `no_effect`."""
    allowed = f"--resume can change: {', '.join(sorted(RESUMABLE - {'run_dir'}))}"
    for name in no_effect:
        raise EngramError(f"{name} has no effect with --resume, which continues in the run's directory; {allowed}")
    old = run_config(directory)
    # A time limit applies only to the part of the run for which it was set.
    new = change(replace(old, time_limit=0.0))
    for name, before, after in fixed_differences(old, new):
        raise EngramError(f"{directory.path} was trained with {name} = {before!r}, not {after!r}; {allowed}")
    if new.checkpoint_url is not None and SECRET in new.checkpoint_url:
        raise EngramError(
            f"{directory.path} copied its checkpoints to {new.checkpoint_url}, whose secret part is not stored; "
            "give --checkpoint-url again, or --checkpoint-url None to stop copying"
        )
    return new


def newest_state(directory: RunDirectory) -> dict[str, Any] | None:
    """Read the state in the newest intact checkpoint; None if the run has not written any."""
    folder = directory.checkpoints
    if path := checkpoints.latest(folder):
        state = saved.read(path)
        if (best := state["best"]) and not checkpoints.is_intact(checkpoints.path_of(folder, best.step)):
            state["best"] = None  # not copied, or damaged: another one has to be the best
        return state
    damaged = f"{directory.path} has no intact checkpoint to resume from; start it again in another --run-dir"
    refuse(checkpoints.all_in(folder), damaged)
    return None


def refuse_unfit(
    directory: RunDirectory, state: dict[str, Any], config: RunConfig, networks: Sequence[nn.Module]
) -> None:
    """Raise EngramError if a run has reached --total-steps, or its weights do not fit the members' `networks`."""
    before = state.get("config", {}).get("total_steps", config.total_steps)
    reached = min(member["learner"]["steps"] for member in state["members"])
    refuse(
        config.total_steps != before and config.total_steps <= reached,
        f"{directory.path} has trained for {reached:,} steps already; --total-steps is {config.total_steps:,}, "
        "which counts from the beginning of the run: it must be larger",
    )
    for network, member in zip(networks, state["members"], strict=False):
        if different := difference(network, member["learner"]["agent"]):
            raise EngramError(
                f"{directory.path} cannot be resumed: the observation or action space of the environment, or the code "
                f"of the core, has changed; {different}"
            )


def drop_code(state: dict[str, Any]) -> bool:
    """Remove actors with pickled environments, which are code, from a state; return whether there were any."""
    batches = [actor["batch"] for actors in state.get("actors", ()) for actor in actors.values()]
    pickled = any("pickled" in part for batch in batches for part in batch.get("parts", [batch]))  # of a mixture
    if pickled:
        del state["actors"]
    return pickled


def find_checkpoint(run: RunDirectory, which: str) -> tuple[Path, dict[str, Any]]:
    """Find the checkpoint selected by `--checkpoint`, with its state; "latest" skips damaged ones."""
    available = ", ".join(sorted(path.name for path in run.checkpoints.glob("step-*"))) or "none"
    if (step := which.removeprefix("step-")).isdecimal():
        path = checkpoints.path_of(run.checkpoints, int(step))
        refuse(not path.is_dir(), f"{run.path} has no checkpoint of step {int(step)}; available: {available}")
        return path, saved.read(path)
    refuse(which not in ("latest", "best"), f"checkpoint is {which!r}; allowed: latest, best, or a step: {available}")
    path = checkpoints.latest(run.checkpoints)
    if path is None:
        raise EngramError(f"{run.path} has no intact checkpoint; available: {available}")
    state = saved.read(path)
    if which == "latest":
        return path, state
    too_early = f"{run.path} has no best checkpoint yet, since too few episodes have ended; use --checkpoint latest"
    refuse(not state["best"], too_early)
    path = checkpoints.path_of(run.checkpoints, state["best"].step)
    return path, saved.read(path)


def evaluation_seed(seed: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(EVALUATION,)).generate_state(1, np.uint64)[0])


def evaluation_factory(trained: RunConfig, env_args: dict[str, Any]) -> ActorFactory:
    """Return training's factory with the environment's `evaluation_args`, then `env_args`."""
    factory = trained.factory()
    changed = dict(getattr(_one_environment(factory), "evaluation_args", {}))
    return replace(factory, imitate="", env_args=trained.env_args | changed | env_args)


def levels_line(trained: RunConfig, factory: ActorFactory, seed: int) -> str:
    """Describe in one line how many levels of an evaluation also occur in training."""
    played, learned = (getattr(_one_environment(f), "level_set", set[bytes])() for f in (factory, trained.factory()))
    line = f"evaluation seed {seed}: random streams that training (seed {trained.seed}) never used"
    changed = {name: value for name, value in factory.env_args.items() if trained.env_args.get(name) != value}
    if changed:
        line += f"; {' '.join(f'{name}={value}' for name, value in changed.items())}"
    if not played:
        return line
    shared, levels = len(played & learned), f"of its {len(played):,} levels"
    also = f"{shared:,} {levels} also occur" if shared else f"none {levels} occurs"
    return f"{line}; {also} in training"


def evaluation_envs(factory: ActorFactory, episodes: int) -> int:
    """Number of environments for an evaluation; one per level if each environment keeps its level."""
    return min(episodes, max(EVALUATED_TOGETHER, getattr(_one_environment(factory), "fixed_levels", 0)))


def _one_environment(factory: ActorFactory) -> Any:
    """Make and close a batch of one environment, for its attributes. Raises EngramError if it cannot be made."""
    with user_errors():
        batch = factory.make_batch(num_envs=1)
    batch.close()
    return batch


def make_actor(
    factory: ActorFactory,
    weights: dict[str, Any],
    *,
    seed: int,
    greedy: bool,
    num_envs: int = 1,
    unroll_length: int = 1,
    first_index: int = 0,
) -> Actor:
    """Make an actor with these weights on separate levels; the caller closes it."""
    with ExitStack() as files:
        with user_errors():
            batch: Any = factory.make_batch(first_index, num_envs)
            files.callback(batch.close)
            agent = factory.make_agent(batch)
            different = difference(agent, weights)
            refuse(different, f"the trained network does not fit an environment with {factory.env_args}: {different}")
        agent.load_state_dict(weights)
        agent.greedy = greedy
        actor = Actor(batch, agent, unroll_length=unroll_length, seed=evaluation_seed(seed), first_index=first_index)
        files.pop_all()
    return actor


def actor_in_training(
    factory: ActorFactory, agent: Agent, seed: int, *, num_envs: int = 1, unroll_length: int = 1
) -> Actor:
    """Make an actor on the CPU with an agent's current weights, without affecting training's random numbers."""
    weights = {name: value.cpu() for name, value in agent.state_dict().items()}
    with torch.random.fork_rng(devices=[]):  # a new agent samples initial weights, which are then replaced
        return make_actor(factory, weights, seed=seed, greedy=False, num_envs=num_envs, unroll_length=unroll_length)
