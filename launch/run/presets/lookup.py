"""The configuration that a preset stands for."""

from typing import Any

from ....envs.registration import find_world, is_world, world_parameters
from ..config import RunConfig, from_dict
from .curriculum import CURRICULUM, CURRICULUM_CORES
from .easy import EASY, EASY_CORES
from .paper import CORES, OTHERS, PAPER, POPGYM, Preset

_VARIANTS = {"easy": (EASY, EASY_CORES), "curriculum": (CURRICULUM, CURRICULUM_CORES)}

PRESETS = ("paper", *_VARIANTS)


def preset(name: str, env: str, core: str) -> RunConfig:
    """The configuration that `--preset NAME --env ENV --core CORE` stands for, before any other flag."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; allowed: {', '.join(PRESETS)}")
    world = world_of(env)
    paper = merge(PAPER.get(world, OTHERS), CORES.get((world, core), {}))
    values = merge({"env": env, "agent": {"core": core}}, paper)
    if name in _VARIANTS:
        worlds, cores = _VARIANTS[name]
        if world not in worlds:
            raise ValueError(f"no preset {name!r} for {env!r}; there is one for: {', '.join(sorted(worlds))}")
        values = merge(merge(values, worlds[world]), cores.get((world, core), {}))
    return from_dict(RunConfig, values)


def world_of(env: str) -> str:
    """The world whose settings a name on a command line has: a twin has those of its world, an id those of its name."""
    name = env.removeprefix("engram:")
    return find_world(name)[0].name if is_world(name) else env


def is_easier_than_paper(env: str, core: str, env_args: dict[str, Any]) -> bool:
    """Whether a world of the papers has other parameters than there; its defaults, written out, are the paper's."""
    if world_of(env) not in PAPER or world_of(env) in POPGYM:  # every difficulty of POPGym is the paper's
        return False
    defaults = {name: given.default for name, given in world_parameters(find_world(world_of(env))[0]).items()}

    def whole(parameters: dict[str, Any]) -> dict[str, Any]:
        return defaults | {key: tuple(each) if isinstance(each, list) else each for key, each in parameters.items()}

    return whole(env_args) != whole(preset(PRESETS[0], env, core).env_args)


def merge(base: Preset, over: Preset) -> Preset:
    """`base` with the values of `over` laid on top, dict by dict."""
    merged = dict(base)
    for key, value in over.items():
        merged[key] = merge(base[key], value) if isinstance(value, dict) and key in base else value
    return merged
