"""Presets by name, from the TOML files of this folder: for each environment, and for a core in it, the values that
differ from the defaults, in the shape of RunConfig."""

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from ....base.errors import refuse
from ....envs.registration import find_environment, is_environment
from ..run_config import RunConfig
from ..settings.plain import from_dict

Values = dict[str, Any]


class Preset(NamedTuple):
    """Settings of a preset, on top of those of "paper"."""

    environments: dict[str, Values]
    cores: dict[tuple[str, str], Values]  # By environment and core, on top of the environment's


def preset(name: str, env: str, core: str) -> RunConfig:
    """Return the configuration of `--preset NAME --env ENV --core CORE`, before any other flag."""
    return from_dict(RunConfig, preset_values(name, env, core))


def preset_values(name: str, env: str, core: str) -> Values:
    """Return the settings of preset `name` that differ from the defaults, as nested dicts."""
    refuse(name not in PRESETS, f"unknown preset {name!r}; allowed: {', '.join(PRESETS)}")
    bare = env.removeprefix("engram:")  # a twin has the settings of its original; an id, those of its short name
    environment = find_environment(bare)[0].name if is_environment(bare) else env
    values: Values = {"env": env, "agent": {"core": core}}
    for each in dict.fromkeys(("paper", name)):
        environments, cores = PRESETS[each]
        if each != "paper" and environment not in environments:
            raise ValueError(f"no preset {name!r} for {env!r}; available for: {', '.join(sorted(environments))}")
        values = merge(values, environments.get(environment, OTHERS))
        values = merge(values, cores.get((environment, core), {}))
    return values


def merge(base: Values, over: Values) -> Values:
    """Update a copy of `base` with the values of `over`, recursively."""
    merged = dict(base)
    for key, value in over.items():
        merged[key] = merge(base[key], value) if isinstance(value, dict) and key in base else value
    return merged


def _resolve(values: Values) -> Values:
    """Add the values of `base`; pairs in a curriculum become tuples, which TOML does not have."""
    values = dict(values)
    if base := values.pop("base", None):
        values = merge(_resolve(_FILES["shared"][base]), values)
    for name, stages in values.get("levels", {}).get("curriculum", {}).items():
        values["levels"]["curriculum"][name] = [tuple(x) if isinstance(x, list) else x for x in stages]
    return values


def _load(environments: Values, cores: Values) -> Preset:
    of_cores = {(env, core): _resolve(values) for env, of in cores.items() for core, values in of.items()}
    return Preset({env: _resolve(values) for env, values in environments.items()}, of_cores)


_FILES: dict[str, Values] = {
    file.stem: tomllib.loads(file.read_text("utf-8")) for file in Path(__file__).parent.glob("*.toml")
}
OTHERS = _resolve(_FILES["shared"]["others"])
"""Paper settings of every environment without an entry."""
PRESETS = {name: _load(**_FILES[name]) for name in ("paper", "easy", "curriculum")}
