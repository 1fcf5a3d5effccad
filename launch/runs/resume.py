"""Resuming a run: its configuration, the settings that may change, and the newest checkpoint."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from ...base.errors import EngramError, refuse
from ...learners import checkpoints
from ..config.command_line import value_of
from ..config.run_config import RESUMABLE, RunConfig
from ..config.run_flags import parse_run
from ..config.urls import SECRET
from . import saved
from .directory import RunDirectory
from .trained import fixed_differences, run_config

NO_EFFECT = ("--preset", "--config", "--run-dir")  # Flags that apply to a new run only


def resumed_by_words(directory: RunDirectory, arguments: Sequence[str]) -> RunConfig:
    without_effect = [flag for flag in NO_EFFECT if value_of(flag, arguments) is not None]
    return resumed_config(directory, lambda base: parse_run(arguments, base=base), without_effect)


def resumed_config(
    directory: RunDirectory, change: Callable[[RunConfig], RunConfig], no_effect: Sequence[str] = ()
) -> RunConfig:
    """Return a run's configuration after `change`, which applies the user's settings; `no_effect` are the names of
    those that apply to a new run only."""
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
    """Raise EngramError if the run in a state has already reached --total-steps, or its weights do not fit the
    `networks` of the members, since the environment has changed."""
    before = state.get("config", {}).get("total_steps", config.total_steps)
    reached = min(member["learner"]["steps"] for member in state["members"])
    refuse(
        config.total_steps != before and config.total_steps <= reached,
        f"{directory.path} has trained for {reached:,} steps already; --total-steps is {config.total_steps:,}, "
        "which counts from the beginning of the run: it must be larger",
    )
    for network, member in zip(networks, state["members"], strict=False):
        if different := saved.difference(network, member["learner"]["agent"]):
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
