"""The words of `rl-train` as a run's configuration.

Flags of the network and the learner need no prefix (`--core`, `--lr`), those of a population have one
(`--pbt.interval`). The order of precedence: flags, then --config FILE, then --preset, then defaults.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...learners.config import LearnerConfig
from .command_line import UsageError, dashed, parse, value_of, without
from .config import MOVED, RunConfig, from_dict, to_dict
from .imports import announce_imports
from .presets import PRESETS, preset
from .run_directory import differing

TRUST = "--trust-checkpoint"
LIST = "--list"
OTHER_FLAGS = (LIST, "--preset", "--config", "--resume", "--restarts", TRUST)
"""Flags of `rl-train` that are no settings of a run."""
UNINTERESTING = (
    *("device", "local", "seed", "start_from", "checkpoint_url", "time_limit", "ray_address", "log_every"),
    *("checkpoint_every", "keep_checkpoints", "max_actor_failures", "actor_timeout", "actor_cpus"),
)
"""Settings that are not shown as changes of a preset: they change the course of a run, but not what is learnt."""


def parse_run(
    arguments: Sequence[str], base: RunConfig | None = None, other_flags: tuple[str, ...] = OTHER_FLAGS
) -> RunConfig:
    """The configuration that `rl-train` words stand for; `base` replaces presets and defaults (for --resume)."""
    words = dashed(arguments)
    _refuse_moved(words)
    default = base or _for_algorithm(_default(words), value_of("--algorithm", words))
    words = without(words, ("--preset", "--config"))
    known = (*OTHER_FLAGS, *other_flags)
    config = parse(RunConfig, words, "rl-train", _HELP, default=default, other_flags=known)
    address = value_of("--ray-address", words)
    if config.local and address is not None:
        raise UsageError(f"--ray-address {address} has no effect with --local; allowed: one of them")
    try:
        return _with_preset(replace(config, learner=_complete(config.learner, default.learner)), default)
    except ValueError as problem:
        raise UsageError(str(problem)) from problem


def changed_from_preset(config: RunConfig, arguments: Sequence[str]) -> str:
    """Differences from the preset, or from the file of --config, in words; empty if nothing that matters differs."""
    words = dashed(arguments)
    plain = _for_algorithm(_default(words), value_of("--algorithm", words))
    plain = replace(plain, learner=_complete(plain.learner, plain.learner))
    found = [
        f"{name} {_shown(new)} ({_shown(old)})"
        for name, old, new in differing(to_dict(plain), to_dict(config))
        if name not in UNINTERESTING
    ]
    named = value_of("--config", words) or f"preset {value_of('--preset', words) or PRESETS[0]}"
    return f"other than in {named}: {', '.join(found)}" if found else ""


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def _with_preset(config: RunConfig, default: RunConfig) -> RunConfig:
    """The configuration with those parameters of world and core that no word names as in `default`."""
    if config.env == default.env:
        config = replace(config, env_args=default.env_args | config.env_args)
    if config.agent.core == default.agent.core:
        agent = replace(config.agent, core_args=default.agent.core_args | config.agent.core_args)
        config = replace(config, agent=agent)
    return config


def _refuse_moved(words: Sequence[str]) -> None:
    """Raise UsageError for a flag that is a setting of an algorithm now."""
    for word in words:
        flag = word.partition("=")[0]
        setting = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and setting in MOVED:
            raise UsageError(
                f"unknown flag {flag!r}; it is a setting of {MOVED[setting]}: --algorithm-args {setting}=VALUE"
            )


def _complete(learner: LearnerConfig, default: LearnerConfig) -> LearnerConfig:
    """The learner's settings with all of the algorithm's: those that no word names are those of the default."""
    if learner.algorithm == default.algorithm:
        learner = replace(learner, algorithm_args=default.algorithm_args | learner.algorithm_args)
    return learner.resolved()


def _for_algorithm(config: RunConfig, algorithm: str | None) -> RunConfig:
    """The same without the settings of its algorithm, if the words ask for another one, which has its own."""
    if algorithm is None or algorithm == config.learner.algorithm:
        return config
    try:
        return replace(config, learner=replace(config.learner, algorithm=algorithm, algorithm_args={}))
    except ValueError as problem:
        raise UsageError(str(problem)) from problem


def _default(words: Sequence[str]) -> RunConfig:
    """Configuration before any flag: the preset of --env and --core, or a saved configuration."""
    file = value_of("--config", words)
    try:
        if file is not None:
            return saved_config(Path(file))
        plain = RunConfig()
        env, core = value_of("--env", words) or plain.env, value_of("--core", words) or plain.agent.core
        return preset(value_of("--preset", words) or PRESETS[0], env, core)
    except (ValueError, TypeError) as problem:
        raise UsageError(str(problem)) from problem


def saved_config(file: Path) -> RunConfig:
    """The configuration in a TOML file. Raises UsageError naming the file and what is wrong with it."""
    try:
        data: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
    except OSError as problem:
        raise UsageError(f"cannot read --config {file}: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:
        why = f"{problem}; expected: TOML, such as the config.toml of a run"
        raise UsageError(f"--config {file}: {why}") from problem
    try:
        announce_imports(data, file)
        return from_dict(RunConfig, data)
    except (ValueError, TypeError) as problem:
        raise UsageError(f"--config {file}: {problem}") from problem


_HELP = f"""Train an agent with memory.

Also: --list (worlds, cores, algorithms, presets and trained agents, one line each), --preset {"|".join(PRESETS)}
(the papers' settings, or one that is learnt in minutes), --config FILE (a saved config.toml), --resume RUN (continue a
run; only --total-steps, --time-limit and what does not change results may be given with it), --restarts N (resume a run
that dies, up to N times in a row without a new checkpoint),
--trust-checkpoint (resume the environments of a Gymnasium world exactly; this runs code that is in the checkpoint)."""
