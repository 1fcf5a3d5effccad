"""Configuration of a preset by name."""

from typing import Any

from ....base.errors import refuse
from ....envs.registration import find_environment, is_environment
from ..run_config import RunConfig
from ..settings.plain import from_dict
from .curriculum import CURRICULUM, CURRICULUM_CORES
from .easy import EASY, EASY_CORES
from .paper import CORES, OTHERS, PAPER, Preset

_VARIANTS = {"easy": (EASY, EASY_CORES), "curriculum": (CURRICULUM, CURRICULUM_CORES)}

PRESETS = ("paper", *_VARIANTS)


def preset(name: str, env: str, core: str) -> RunConfig:
    """Return the configuration of `--preset NAME --env ENV --core CORE`, before any other flag."""
    return from_dict(RunConfig, preset_values(name, env, core))


def preset_values(name: str, env: str, core: str) -> dict[str, Any]:
    """Return the settings of preset `name` that differ from the defaults, as nested dicts."""
    refuse(name not in PRESETS, f"unknown preset {name!r}; allowed: {', '.join(PRESETS)}")
    bare = env.removeprefix("engram:")  # a twin has the settings of its original; an id, those of its short name
    environment = find_environment(bare)[0].name if is_environment(bare) else env
    paper = merge(PAPER.get(environment, OTHERS), CORES.get((environment, core), {}))
    values = merge({"env": env, "agent": {"core": core}}, paper)
    if name in _VARIANTS:
        environments, cores = _VARIANTS[name]
        if environment not in environments:
            raise ValueError(f"no preset {name!r} for {env!r}; available for: {', '.join(sorted(environments))}")
        values = merge(merge(values, environments[environment]), cores.get((environment, core), {}))
    return values


def merge(base: Preset, over: Preset) -> Preset:
    """Update a copy of `base` with the values of `over`, recursively."""
    merged = dict(base)
    for key, value in over.items():
        merged[key] = merge(base[key], value) if isinstance(value, dict) and key in base else value
    return merged
