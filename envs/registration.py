"""The registry of engram's environments, which are imported when first made, and their construction by name."""

import importlib
import inspect
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ..base.errors import advice, check_choice, check_keys, check_whole, refuse


@dataclass(frozen=True)
class Environment:
    """Registry entry of one environment; `engram.envs.<module>` defines `<class_name>` and `<class_name>Batch`."""

    name: str  # Short name on command lines, e.g. "boxworld"
    class_name: str
    module: str
    twin: dict[str, Any] = field(default_factory=dict[str, Any])
    """Parameters of `<name>-twin`, the same environment with observations of what must otherwise be remembered."""
    readable: bool = False  # Whether `engine="pycolab"` selects a readable reference implementation (pycolab_games)

    @property
    def id(self) -> str:
        """Gymnasium id, e.g. "engram/BoxWorld-v0"."""
        return f"engram/{self.class_name}-v0"


ENGINES = ("compiled", "pycolab")
ENVIRONMENTS = {
    environment.name: environment
    for environment in [
        Environment("boxworld", "BoxWorld", "boxworld", {"view": "full"}),
        Environment("mini-pacman", "MiniPacman", "mini_pacman", {"view": "full"}),
        Environment("maze", "Maze", "maze", {"show_goal": True}),
        Environment("pomdp-graph", "PomdpGraph", "pomdp_graph", {"show_graph": True}),
        Environment("cued-catch", "CuedCatch", "cued_catch", {"always_show_ball_symbol": True}, readable=True),
        Environment("t-maze", "TMaze", "t_maze", {"cue_after_teleport": True}, readable=True),
        Environment("sequence-recall", "SequenceRecall", "sequence_recall", {"show_sequence": True}, readable=True),
        Environment("popgym-repeat-previous", "PopgymRepeatPrevious", "popgym.cards"),
        Environment("popgym-repeat-first", "PopgymRepeatFirst", "popgym.cards"),
        Environment("popgym-autoencode", "PopgymAutoencode", "popgym.cards"),
        Environment("popgym-count-recall", "PopgymCountRecall", "popgym.cards"),
        Environment("popgym-concentration", "PopgymConcentration", "popgym.cards"),
        Environment("popgym-higher-lower", "PopgymHigherLower", "popgym.cards"),
        Environment("popgym-battleship", "PopgymBattleship", "popgym.game"),
        Environment("popgym-mine-sweeper", "PopgymMineSweeper", "popgym.game"),
    ]
}
_SHORT_NAMES = {environment.id: name for name, environment in ENVIRONMENTS.items()}


def register_envs() -> None:
    """Register every environment with Gymnasium. Importing engram calls this; further calls have no effect."""
    for environment in ENVIRONMENTS.values():
        if environment.id not in gymnasium.registry:
            entry = f"{__package__}.{environment.module}:{environment.class_name}"
            gymnasium.register(id=environment.id, entry_point=entry, vector_entry_point=f"{entry}Batch")


def environment_names() -> list[str]:
    """Return all short names, including those of twins."""
    return [*ENVIRONMENTS, *(f"{name}-twin" for name, environment in ENVIRONMENTS.items() if environment.twin)]


def is_environment(name: str) -> bool:
    """Return whether `name` is a short name or Gymnasium id of one of engram's environments."""
    return name in environment_names() or name in _SHORT_NAMES


def find_environment(name: str) -> tuple[Environment, dict[str, Any]]:
    """Return the registry entry for a short name or engram id, and the parameters that the name of a twin implies."""
    short, names = _SHORT_NAMES.get(name, name), environment_names()
    if short not in names:
        raise ValueError(f"unknown environment {name!r}; {advice(name, [*names, *gymnasium.registry], 4)}")
    environment = ENVIRONMENTS[short.removesuffix("-twin")]
    return environment, dict(environment.twin) if short.endswith("-twin") else {}


def batch_class(environment: Environment) -> type[Any]:
    return getattr(importlib.import_module(f".{environment.module}", __package__), f"{environment.class_name}Batch")


def purpose(batch: type[Any]) -> str:
    """Describe an environment by its batched class's first docstring line or, if that has no colon, by its module's."""
    first, module = ((item.__doc__ or "").partition("\n")[0] for item in (batch, sys.modules[batch.__module__]))
    return first.removeprefix("N games of ") if ": " in first else module


def environment_parameters(environment: Environment) -> dict[str, inspect.Parameter]:
    """Return an environment's parameters by name: those of its constructor, and `engine` if it has a reference."""
    from .engine import parameter_names

    batch = batch_class(environment)
    signature = inspect.signature(batch).parameters
    values = {name: signature[name] for name in parameter_names(batch)}
    if environment.readable:
        values["engine"] = inspect.Parameter("engine", inspect.Parameter.KEYWORD_ONLY, default=ENGINES[0])
    return values


def default_values(environment: Environment) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in environment_parameters(environment).items()}


def can_draw(name: str) -> bool:
    """Return whether an environment renders images, as all of engram's do; others declare it in their metadata."""
    from .foreign import draws, find_foreign

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
    """Make a batch of environments. Raises ValueError with the nearest names for an unknown environment or parameter.

    Args:
        name: short name, Gymnasium id, or `module:Class`.
        first_index: index of the first environment; indices determine the random streams.
        env_workers: number of processes that step a foreign environment; 0 and 1 step it in this process.
        parameters: arguments of the environment's constructor; `name`, `num_envs` and `first_index` may be among them.
    """
    from .engine import BatchedEnv, parameter_names
    from .foreign import ForeignBatch, draws, find_foreign, is_vector
    from .foreign.vector import JaxBatch, VectorBatch
    from .foreign.workers import WorkerBatch

    foreign = None if is_environment(name) else find_foreign(name)
    if env_workers > 1 and (foreign is None or is_vector(foreign[0])):
        raise ValueError(f"env_workers is {env_workers}; allowed with {name}, which steps all environments at once: 0")
    if foreign is None:
        environment, values = find_environment(name)
        check_keys(name, "parameter", parameters, environment_parameters(environment))
        values |= parameters
        engine = values.pop("engine", ENGINES[0])
        check_choice("engine", engine, ENGINES)
        batch = batch_class(environment)(num_envs, first_index=first_index, render_mode=render_mode, **values)
        if engine == ENGINES[0]:
            return batch
        from .pycolab_games.batch import PycolabBatch

        return PycolabBatch(batch, environment.name, default_values(environment) | values)
    make, allowed = foreign
    if isinstance(make, type) and issubclass(make, BatchedEnv):
        check_keys(name, "parameter", parameters, parameter_names(make))
        return make(num_envs, first_index=first_index, render_mode=render_mode, **parameters)
    check_keys(name, "parameter", parameters, parameters if allowed is None else allowed)
    values = dict(parameters)
    if render_mode is not None or draws(make):
        parameters["render_mode"] = render_mode or "rgb_array"  # no cost until an image is requested
    if is_vector(make):
        made = JaxBatch if name.startswith("jax:") else VectorBatch
        return made(lambda n: make(num_envs=n, **parameters), num_envs, first_index=first_index, name=name)
    if min(env_workers, num_envs) > 1:
        group = partial(make_batch, name, render_mode=render_mode, **values)
        return WorkerBatch(group, num_envs, env_workers, first_index=first_index)
    return ForeignBatch(lambda: make(**parameters), num_envs, first_index=first_index, name=name)


def make_env(env: str, num_envs: int | None = None, *, render_mode: str | None = None, **parameters: Any) -> Any:
    """Make one `gymnasium.Env`, or `num_envs` environments as a `gymnasium.vector.VectorEnv`.

    A vector environment resets automatically: the step after `terminated | truncated` ignores its action and returns
    the next episode's first observation (Gymnasium's NEXT_STEP).

    Args:
        env: short name ("boxworld", "boxworld-twin"), Gymnasium id or "module:Class".
        num_envs: number of environments; None for a single `gymnasium.Env`.
        render_mode: None, or "rgb_array" for images from `render()`.
        **parameters: parameters of the environment.

    Raises:
        ValueError: unknown environment or parameter; the message suggests similar names.
    """
    from .foreign import find_foreign, is_vector

    if num_envs is not None:
        check_whole("num_envs", num_envs, 1)
    foreign = None if is_environment(env) else find_foreign(env)
    if foreign is None:
        environment, preset_parameters = find_environment(env)
        check_keys(env, "parameter", parameters, environment_parameters(environment))
        options: dict[str, Any] = preset_parameters | parameters | {"render_mode": render_mode}
        if num_envs is None:
            return gymnasium.make(environment.id, disable_env_checker=True, **options)
        return gymnasium.make_vec(environment.id, num_envs=num_envs, **options)
    make, allowed = foreign
    check_keys(env, "parameter", parameters, parameters if allowed is None else allowed)
    if render_mode is not None:
        parameters["render_mode"] = render_mode
    if is_vector(make):
        refuse(num_envs is None, f"num_envs is None; {env} is a vector environment; allowed: at least 1")
        return make(num_envs=num_envs, **parameters)
    if num_envs is None:
        return make(**parameters)
    return SyncVectorEnv([lambda: make(**parameters)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
