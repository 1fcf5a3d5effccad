"""Third-party environments, with the interface of the batched engine, and how to find them by name: any Gymnasium id,
or `module:Class`, of single or vector environments."""

import copy
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv

from ...base.errors import library_errors, nearest, refuse
from .batch import ForeignBatch as ForeignBatch
from .vector import JaxVectorEnv, start_jax

# Packages that register their ids when imported, by the prefix of the ids
REGISTERED_BY = {"ALE": "ale_py", "BabyAI": "minigrid", "MiniGrid": "minigrid", "popgym": "popgym"}
_MARK = "__makes_environments__"
EnvMaker = Callable[..., Any]  # Makes an environment from keyword arguments; a subclass of BatchedEnv makes a batch


def find_foreign(name: str) -> tuple[EnvMaker, dict[str, inspect.Parameter] | None] | None:
    """Find the maker of `name` and its parameters (None if it accepts any); return None if the name is unknown.
    Raises ValueError if a `module:Class`, `jax:module:make`, or the package that registers the id cannot be loaded."""
    package = REGISTERED_BY.get(name.partition("/")[0].partition("-")[0])
    if package is not None and name not in gymnasium.registry:
        _import(package, name)
    if name in gymnasium.registry:
        return _maker_of_id(name)
    in_jax = name.startswith("jax:")
    module_name, colon, attribute = name.removeprefix("jax:").partition(":")
    if module_name.endswith(".py"):
        expected = f"{module_name.removesuffix('.py').replace('/', '.')}:{attribute or 'CLASS'}"
        raise ValueError(f"environment {name!r} names a file; expected: a module and a class, {expected}")
    if not colon:
        return None
    refuse(not (module_name and attribute), f"environment {name!r} is incomplete; expected module:Class")
    if in_jax:
        start_jax(name)  # before the module starts it with more threads
    module = _import(module_name, name)
    if not in_jax and attribute in gymnasium.registry:  # Gymnasium's own module:id
        return _maker_of_id(attribute)
    result: Any = getattr(module, attribute, None)
    if not _makes_environments(result, in_jax) and name != "jax:gymnax:make":
        names = [key for key, value in vars(module).items() if _makes_environments(value, in_jax)]
        actual = f"{attribute!r} is no environment" if hasattr(module, attribute) else f"no {attribute!r}"
        kind = "class with reset and step" if in_jax else "subclass of gymnasium.Env"
        raise ValueError(
            f"{module_name}: {actual}; expected a {kind}, or a function with @engram.envs.foreign.environment_maker; "
            f"available: {nearest(attribute, names)}"
        )
    if in_jax:
        return lambda num_envs, **values: JaxVectorEnv(result(**values), num_envs, name), _parameters(result)
    return result, _parameters(result)


def environment_maker(function: EnvMaker) -> EnvMaker:
    """Mark a function that makes a `gymnasium.Env`, so that `--env module:function` may call it. A function with the
    parameter `num_envs` makes a `gymnasium.vector.VectorEnv` with that number of environments. Unmarked functions are
    never called: an untrusted configuration could name any function."""
    setattr(function, _MARK, True)
    return function


def _makes_environments(value: Any, in_jax: bool) -> bool:
    if inspect.isclass(value) and in_jax:
        return hasattr(value, "reset") and hasattr(value, "step")
    if inspect.isclass(value):
        return issubclass(value, gymnasium.Env | VectorEnv) and value not in (gymnasium.Env, VectorEnv)
    return getattr(value, _MARK, False) is True


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        hint = f"; try: pip install {module}" if module in REGISTERED_BY.values() else ""
        raise ValueError(f"environment {name!r} needs the module {module}: {problem}{hint}") from problem


def _maker_of_id(name: str) -> tuple[EnvMaker, dict[str, inspect.Parameter] | None]:
    spec = gymnasium.registry[name]
    entry: Any = spec.entry_point or spec.vector_entry_point
    with library_errors(f"{name} cannot be loaded", ImportError, AttributeError, gymnasium.error.Error):
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
    allowed = _parameters(creator)
    if spec.entry_point is None:

        def make_vec(num_envs: int, **parameters: Any) -> Any:
            return gymnasium.make_vec(name, num_envs, vectorization_mode="vector_entry_point", **parameters)

        return make_vec, allowed

    def make(**parameters: Any) -> Any:
        spec = copy.deepcopy(gymnasium.registry[name])  # otherwise gymnasium.make would accept no parameter called `id`
        limit = {key: parameters.pop(key) for key in ["max_episode_steps"] if key in parameters}
        spec.kwargs |= parameters
        return gymnasium.make(spec, disable_env_checker=True, **limit)

    make.creator = creator  # pyright: ignore[reportFunctionMemberAccess]
    if allowed is not None:
        allowed |= {"max_episode_steps": inspect.signature(gymnasium.make).parameters["max_episode_steps"]}
    return make, allowed


def is_vector(maker: EnvMaker) -> bool:
    """Whether a maker makes vector environments: a subclass of VectorEnv, or a function of `num_envs`."""
    return issubclass(maker, VectorEnv) if inspect.isclass(maker) else "num_envs" in inspect.signature(maker).parameters


def draws(maker: EnvMaker) -> bool:
    """Whether a class, or that of a registered id, declares images and accepts `render_mode`."""
    creator = getattr(maker, "creator", maker)
    metadata = getattr(creator, "metadata", None)
    drawing = isinstance(metadata, dict) and "rgb_array" in metadata.get("render_modes", ())
    return drawing and "render_mode" in inspect.signature(creator).parameters


def _parameters(maker: EnvMaker) -> dict[str, inspect.Parameter] | None:
    parameters = inspect.signature(maker).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    hidden = {"self", "render_mode"} | ({"num_envs", "first_index"} if is_vector(maker) else set[str]())
    return {key: parameter for key, parameter in parameters.items() if key not in hidden}
