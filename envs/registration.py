"""The table of environments, and how a name on a command line becomes a batch of them.

This module imports no game: Gymnasium loads one when it is first made.
"""

import importlib
import inspect
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium

from ..base.messages import advice, check_keys


@dataclass(frozen=True)
class Environment:
    """One environment: its short name, its class and the parameters of its memory-free twin."""

    name: str
    """Short name on command lines, e.g. "boxworld"."""
    class_name: str
    """Class of the single environment, e.g. "BoxWorld"; the batched one is called `<class_name>Batch`."""
    module: str
    """Module inside engram.envs that holds both classes."""
    twin: dict[str, Any] = field(default_factory=dict[str, Any])
    """Parameters that make the memory-free control, the environment `<name>-twin`."""

    @property
    def id(self) -> str:
        """Gymnasium's id."""
        return f"engram/{self.class_name}-v0"


ENVIRONMENTS = {
    environment.name: environment
    for environment in [
        Environment("boxworld", "BoxWorld", "boxworld", {"view": "full"}),
        Environment("mini-pacman", "MiniPacman", "mini_pacman", {"view": "full"}),
        Environment("maze", "Maze", "maze", {"show_goal": True}),
        Environment("pomdp-graph", "PomdpGraph", "pomdp_graph", {"show_graph": True}),
        Environment("cued-catch", "CuedCatch", "cued_catch", {"always_show_ball_symbol": True}),
        Environment("t-maze", "TMaze", "t_maze", {"cue_after_teleport": True}),
        Environment("sequence-recall", "SequenceRecall", "sequence_recall", {"show_sequence": True}),
        Environment("popgym-repeat-previous", "PopgymRepeatPrevious", "popgym.repeat_previous"),
        Environment("popgym-repeat-first", "PopgymRepeatFirst", "popgym.repeat_first"),
        Environment("popgym-autoencode", "PopgymAutoencode", "popgym.autoencode"),
        Environment("popgym-count-recall", "PopgymCountRecall", "popgym.count_recall"),
        Environment("popgym-concentration", "PopgymConcentration", "popgym.concentration"),
        Environment("popgym-higher-lower", "PopgymHigherLower", "popgym.higher_lower"),
        Environment("popgym-battleship", "PopgymBattleship", "popgym.battleship"),
        Environment("popgym-mine-sweeper", "PopgymMineSweeper", "popgym.mine_sweeper"),
    ]
}


def register_envs() -> None:
    """Register every environment with Gymnasium (once; importing engram does it)."""
    for environment in ENVIRONMENTS.values():
        if environment.id not in gymnasium.registry:
            entry = f"{__package__}.{environment.module}:{environment.class_name}"
            gymnasium.register(id=environment.id, entry_point=entry, vector_entry_point=f"{entry}Batch")


def environment_names() -> list[str]:
    """Every short name, twins included."""
    return [*ENVIRONMENTS, *(f"{name}-twin" for name, environment in ENVIRONMENTS.items() if environment.twin)]


def is_environment(name: str) -> bool:
    """Whether `name` is a short name or an id of our own environments."""
    return name in environment_names() or name in (environment.id for environment in ENVIRONMENTS.values())


def find_environment(name: str) -> tuple[Environment, dict[str, Any]]:
    """The environment of a short name or engram id, with the parameters that the name stands for.

    Raises ValueError naming the nearest valid names.
    """
    short = next((environment.name for environment in ENVIRONMENTS.values() if environment.id == name), name)
    environment = ENVIRONMENTS.get(short.removesuffix("-twin"))
    if environment is None or (short.endswith("-twin") and not environment.twin):
        names = [*environment_names(), *gymnasium.registry]
        raise ValueError(f"unknown environment {name!r}; {advice(name, names, count=4)}")
    return environment, dict(environment.twin) if short.endswith("-twin") else {}


def batch_class(environment: Environment) -> type[Any]:
    """The batched engine class of an environment (imports the game)."""
    return getattr(importlib.import_module(f".{environment.module}", __package__), f"{environment.class_name}Batch")


def environment_parameters(environment: Environment) -> dict[str, inspect.Parameter]:
    """The parameters that an environment takes, by name."""
    from .engine import parameter_names

    made = batch_class(environment)
    values = inspect.signature(made).parameters
    return {name: values[name] for name in parameter_names(made)}


def takes_workers(name: str) -> bool:
    """Whether an environment is made by somebody else and steps alone, so that `env_workers` can step it."""
    from .foreign.names import find_foreign, is_vector

    foreign = None if is_environment(name) else find_foreign(name)
    return foreign is not None and not is_vector(foreign[0])


def can_draw(name: str) -> bool:
    """Whether an environment declares images (Gymnasium's metadata), or is one of engram's, all of which have them."""
    from .foreign.names import draws, find_foreign

    foreign = None if is_environment(name) else find_foreign(name)
    return foreign is None or draws(foreign[0])


def make_batch(
    name: str,
    num_envs: int,
    first_index: int = 0,
    env_workers: int = 0,
    /,
    *,
    render_mode: str | None = None,
    **parameters: Any,
) -> Any:
    """A batch of `num_envs` copies of the environment `name`, indices first_index and up.

    An environment's own `parameters` may be called `name`, `num_envs` or `first_index`.
    With `env_workers`, a foreign environment is stepped in as many processes (0, 1: in this one).
    `name` is a short name or engram id, any other Gymnasium id, or `module:Class`. Raises ValueError naming the nearest
    valid names for an unknown environment or parameter.
    """
    from .engine import BatchedEnv
    from .foreign import ForeignBatch
    from .foreign.names import draws, find_foreign, is_vector
    from .foreign.vector import VectorBatch
    from .foreign.workers import WorkerBatch

    foreign = None if is_environment(name) else find_foreign(name)
    if env_workers > 1 and not takes_workers(name):
        raise ValueError(f"env_workers is {env_workers}; allowed with {name}, which steps all environments at once: 0")
    if foreign is None:
        environment, values = find_environment(name)
        check_keys(name, "parameter", parameters, environment_parameters(environment))
        return batch_class(environment)(
            num_envs, first_index=first_index, render_mode=render_mode, **(values | parameters)
        )
    make, allowed = foreign
    check_keys(name, "parameter", parameters, parameters if allowed is None else allowed)
    if isinstance(make, type) and issubclass(make, BatchedEnv):
        return make(num_envs, first_index=first_index, render_mode=render_mode, **parameters)
    values = dict(parameters)
    if render_mode is not None or draws(make):
        parameters["render_mode"] = render_mode or "rgb_array"  # costs nothing until an image is queried
    if is_vector(make):
        return VectorBatch(lambda n: make(num_envs=n, **parameters), num_envs, first_index=first_index, name=name)
    if min(env_workers, num_envs) > 1:
        group = partial(make_batch, name, render_mode=render_mode, **values)
        return WorkerBatch(group, num_envs, env_workers, first_index=first_index)
    return ForeignBatch(lambda: make(**parameters), num_envs, first_index=first_index, name=name)
