"""A run's configuration from the arguments of `rl-train` or the settings of a Python call.

Flags of the network and the learner have no prefix (`--core`, `--lr`), those of a population have the prefix `pbt.`
(`--pbt.interval`); in Python, `lr=1e-3` and `pbt={"interval": 5}`. Precedence: flags, then --config FILE,
then --preset, then defaults.

The TOML files in presets/ contain, for each environment and for a core in it, the values that differ from the defaults,
in the shape of RunConfig.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from ...agents.config import AgentConfig
from ...agents.cores.registry import core_parameters
from ...base.errors import EngramError, advice, refuse, user_errors
from ...envs.registration import ENVIRONMENTS, environment_parameters, find_environment, is_environment
from ...learners.algorithms import algorithm_class, algorithm_names, algorithm_settings
from ...learners.config import LearnerConfig
from ..runs.directory import CONFIG, read_toml, refuse_inside
from .command_line import DRY_RUN, LIST, MEANINGS, OTHER_NAMES, TRUST, dashed, parse, settings_of, value_of, without
from .plain import from_dict, typed
from .run_config import RunConfig

TRIAL_FLAGS = ("--seeds", "--sweep", "--trials", "--jobs")  # Flags of `rl-train` for several runs in one directory
OTHER_FLAGS = (LIST, DRY_RUN, "--preset", "--config", "--resume", "--restarts", TRUST, *TRIAL_FLAGS)
"""Flags of `rl-train` that are not settings of a run."""
NO_ENV = f"allowed: {', '.join(ENVIRONMENTS)}, a Gymnasium id or module:Class"
"""End of the message for a missing environment."""
PARTS = ("env", "core", "algorithm")  # Settings on whose choice the defaults of others depend

Values = dict[str, Any]


class Preset(NamedTuple):
    """Settings of a preset, on top of those of "paper"."""

    environments: dict[str, Values]
    cores: dict[tuple[str, str], Values]  # By environment and core, on top of the environment's


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


_FOLDER = Path(__file__).with_name("presets")
_FILES: dict[str, Values] = {file.stem: tomllib.loads(file.read_text("utf-8")) for file in _FOLDER.glob("*.toml")}
OTHERS = _resolve(_FILES["shared"]["others"])
"""Paper settings of every environment without an entry."""
PRESETS = {name: _load(**_FILES[name]) for name in ("paper", "easy", "curriculum")}
_HELP = Path(__file__).with_name("rl-train.txt").read_text("utf-8").format(presets="|".join(PRESETS)).strip()


def parse_run(
    arguments: Sequence[str],
    base: RunConfig | None = None,
    other_flags: tuple[str, ...] = (),
    *,
    env_required: bool = False,
) -> RunConfig:
    """Parse the arguments of `rl-train` into a configuration; `base` replaces presets and defaults (for --resume), and
    the command parses OTHER_FLAGS and `other_flags` itself."""
    argv = dashed(arguments)
    chosen = {name: value_of(f"--{name}", argv) for name in ("config", "preset", *PARTS)}
    default = base or _default_of(chosen, alone=value_of("--population", argv) == "0")
    named = base is not None or chosen["env"] or chosen["config"]
    if env_required and not named and {"-h", "--help"} & {*argv}:
        default = replace(default, env=tyro.MISSING)  # shown as required
    options: Any = {"default": default, "other_flags": (*OTHER_FLAGS, *other_flags)}
    explain = partial(_meaning, chosen=chosen, default=default)
    config = parse(RunConfig, without(argv, ("--preset", "--config")), "rl-train", _HELP, **options, explain=explain)
    refuse(env_required and not named, f"--env is missing; {NO_ENV}, as in: rl-train --env t-maze --preset easy")
    return _complete(config, default, value_of("--envs-per-update", argv) is not None)


def with_settings(settings: Mapping[str, Any], base: RunConfig | None = None) -> RunConfig:
    """Return the configuration for settings named as flags, such as `num_actors` for `--num-actors`.

    `preset` and `config` (a file) are also settings; `base` replaces presets and defaults (to resume a run). Raises
    EngramError naming the setting, the allowed values and the nearest name.
    """
    default, remaining = base, dict(settings)
    if default is None:
        chosen = {name: remaining.pop(name, None) for name in ("preset", "config")}
        refuse(remaining.get("env") is None and chosen["config"] is None, f"env is missing; {NO_ENV}")
        chosen |= {name: remaining.get(name) for name in PARTS}
        default = _default_of(chosen, alone=remaining.get("population") == 0)
    paths, values = settings_of(RunConfig), asdict(default)
    for name, value in _flat(remaining, paths).items():
        if name not in paths:
            hint = _meaning(name, remaining, default) or advice(OTHER_NAMES.get(name, name), paths)
            raise EngramError(f"unknown setting {name!r}; {hint}")
        *parts, last = paths[name]
        part = values
        for each in parts:
            part = part[each]
        part[last] = value
    with user_errors():
        config = from_dict(RunConfig, values)
    return _complete(config, default, "envs_per_update" in remaining)


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


def _flat(settings: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Name the settings of a group as flags do: {"pbt": {"interval": 5}} becomes {"pbt.interval": 5}."""
    groups = {name.partition(".")[0] for name in paths if "." in name}
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        group = name in groups and isinstance(value, Mapping)
        flat |= {f"{name}.{key}": x for key, x in value.items()} if group else {name: value}
    return flat


def _meaning(name: str, chosen: Mapping[str, Any], default: RunConfig) -> str:
    """Explain where an unknown setting belongs, as the end of a message; empty if the name is unknown."""
    if name in OTHER_NAMES:
        return ""
    defaults = (default.env, default.agent.core, default.learner.algorithm)
    env, core, algorithm = (str(chosen.get(part) or own) for part, own in zip(PARTS, defaults, strict=True))
    try:
        settings = {
            each: {field.name for field in fields(algorithm_class(each).Settings)}
            for each in (algorithm, *algorithm_names())
        }
        if name in settings[algorithm]:
            return f"it is a setting of {algorithm}: --algorithm-args {name}=VALUE"
        if name in core_parameters(core):
            return f"it is an option of {core}: --core-args {name}=VALUE"
        if is_environment(env) and name in environment_parameters(find_environment(env)[0]):
            return f"it is a parameter of {env}: --env-args {name}=VALUE"
    except ValueError:  # one of the names does not exist, which is reported elsewhere
        return MEANINGS.get(name, "")
    others = " and ".join(each for each in algorithm_names() if name in settings[each])
    elsewhere = f"it is a setting of {others}, not of {algorithm}: --algorithm-args {name}=VALUE" if others else ""
    return MEANINGS.get(name, elsewhere)


def _complete(config: RunConfig, default: RunConfig, sized: bool) -> RunConfig:
    """Add the default's parameters of environment, core, torso and algorithm if these are the default's. `sized`:
    whether the user set envs_per_update, which synchronous runs ignore."""
    refuse(
        sized and config.synchronous and config.envs_per_update != config.columns,
        f"envs_per_update is {config.envs_per_update}; allowed with --sync, A2C and PPO, which learn from one unroll "
        f"of every actor: num_actors * envs_per_actor, here {config.columns}",
    )
    agent, learner, torso = config.agent, config.learner, config.agent.torso
    if torso.torso == default.agent.torso.torso:
        torso = replace(torso, torso_args=default.agent.torso.torso_args | torso.torso_args)
    agent = replace(agent, torso=torso)
    if agent.core == default.agent.core:
        agent = replace(agent, core_args=default.agent.core_args | agent.core_args)
    if learner.algorithm == default.learner.algorithm:
        learner = replace(learner, algorithm_args=default.learner.algorithm_args | learner.algorithm_args)
    env_args = default.env_args | config.env_args if config.env == default.env else config.env_args
    with user_errors():
        return replace(config, agent=agent, learner=learner.resolved(), env_args=env_args)


def _default_of(chosen: Mapping[str, Any], alone: bool) -> RunConfig:
    """Load a saved configuration, or the preset of an environment and a core, with all settings of the algorithm. A
    different algorithm gets default settings. `alone` replaces a population and its search space with one learner.
    """
    file, preset, algorithm = chosen["config"], chosen["preset"], chosen["algorithm"]
    if file is not None and preset is not None:
        raise EngramError(f"--preset {preset} has no effect with --config {file}; allowed: one of them")
    with user_errors(f"--config {file}" if file else ""):
        if file is not None:
            values = _saved_values(Path(file))
        else:
            env, core = chosen["env"] or RunConfig.env, chosen["core"] or AgentConfig.core
            values = preset_values(preset or "paper", env, core)
        learner: Any = values.get("learner", {})
        if isinstance(learner, dict):
            saved = learner.get("algorithm", LearnerConfig.algorithm)
            args = learner.get("algorithm_args", {}) if algorithm in (None, saved) else {}
            settings = algorithm_settings(algorithm or saved, typed(dict[str, Any], args, "learner.algorithm_args"))
            values |= {"learner": learner | {"algorithm": algorithm or saved, "algorithm_args": asdict(settings)}}
        omitted = ("population", "pbt") if alone else ()
        return from_dict(RunConfig, {key: x for key, x in values.items() if key not in omitted})


def _saved_values(file: Path) -> dict[str, Any]:
    """Read the settings in a TOML file. Raises EngramError naming the file and the problem."""
    data = read_toml(file, "the file cannot be read", "expected TOML, as a run's config.toml")
    if file.name == CONFIG and (file.absolute().parent != Path.cwd() or (file.parent / "checkpoints").exists()):
        refuse_inside(data, file.parent)  # the file belongs to a run
        data.pop("run_dir", None)  # the directory of that run, not of the new one
    return data
