"""From command-line words to a configuration, and from a user's mistake to one clear line.

Flags are made by tyro from the configuration's fields; those of the network and the learner need no prefix
(`--core`, `--lr`), those of a population have one (`--pbt.interval`). The order of precedence: flags, then --config
FILE, then --preset, then defaults.
"""

import ast
import difflib
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from ...learners.config import LearnerConfig
from .config import MOVED, RunConfig, from_dict
from .presets import PRESETS, preset

FLAG = re.compile(r"--[a-z][a-z0-9.-]*")
Config = TypeVar("Config")


class UsageError(ValueError):
    """A mistake of the user's; shown as one line, exit code 2."""


def run_command(name: str, main: Callable[[Sequence[str]], int], arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line's `main` and exit: 2 and one line for a usage error, never a traceback for one."""
    try:
        code = main(sys.argv[1:] if arguments is None else arguments)
    except UsageError as problem:
        print(f"{name}: {problem}", file=sys.stderr)
        code = 2
    except BrokenPipeError:
        code = 1
    sys.exit(code)


def parse_run(
    arguments: Sequence[str], base: RunConfig | None = None, other_flags: tuple[str, ...] = ("--resume", "--restarts")
) -> RunConfig:
    """The configuration that `rl-train` words stand for; `base` replaces presets and defaults (for --resume)."""
    words = dashed(arguments)
    default = base or _for_algorithm(_default(words), value_of("--algorithm", words))
    words = without(words, ("--preset", "--config"))
    config = parse(
        RunConfig, words, "rl-train", _HELP, default=default, other_flags=("--preset", "--config", *other_flags)
    )
    return replace(config, learner=_complete(config.learner, default.learner))


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


def parse(
    cls: type[Config],
    arguments: Sequence[str],
    prog: str,
    description: str,
    *,
    default: Config | None = None,
    other_flags: tuple[str, ...] = (),
) -> Config:
    """A configuration dataclass from words; exits with a message for a bad value, as tyro does.

    Args:
        cls: the dataclass; without `default`, its own defaults hold.
        arguments: the words.
        prog: the command's name.
        description: what `--help` says first.
        default: what holds where no flag is given.
        other_flags: flags that the command reads by itself, to be named where an unknown one comes near.

    Raises:
        UsageError: an unknown flag or word, or a combination of values that is not allowed.
    """
    given: dict[str, Any] = {} if default is None else {"default": default}
    unprefixed: Any = Annotated[cls, tyro.conf.arg(prefix_name=False)]  # pyright: ignore[reportInvalidTypeForm]
    try:
        config, unknown = tyro.cli(
            unprefixed,
            prog=prog,
            description=description,
            args=dashed(arguments),
            **given,
            return_unknown_args=True,
            registry=_registry(),
        )
    except ValueError as problem:
        raise UsageError(str(problem)) from problem
    if unknown:
        raise UsageError(_unknown_flag(unknown[0], {*_flags(cls), *other_flags}, prog))
    return config


def dashed(arguments: Sequence[str]) -> list[str]:
    """The words with `-` for `_` in the names of flags."""
    return [word.replace("_", "-") if word.startswith("--") and "=" not in word else word for word in arguments]


def value_of(flag: str, words: Sequence[str]) -> str | None:
    """The word that follows `flag` (or `flag=word`), or None without it. Raises UsageError if nothing follows."""
    for i, word in enumerate(words):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag:
            if i + 1 == len(words) or FLAG.fullmatch(words[i + 1]):
                raise UsageError(f"{flag} needs a value")
            return words[i + 1]
    return None


def key_values(words: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` words as a dict; values are Python literals where they look like one, else strings."""
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (key and equals):
            raise ValueError(f"{word!r} is not of the form KEY=VALUE")
        values[key.replace("-", "_")] = _literal(text)
    return values


def _literal(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return list(value) if isinstance(value, tuple) else value


def _default(words: Sequence[str]) -> RunConfig:
    """What holds before any flag: the preset of --env and --core, or a saved configuration."""
    file = value_of("--config", words)
    try:
        if file is not None:
            return from_dict(RunConfig, tomllib.loads(Path(file).read_text()))
        plain = RunConfig()
        env, core = value_of("--env", words) or plain.env, value_of("--core", words) or plain.agent.core
        return preset(value_of("--preset", words) or PRESETS[0], env, core)
    except OSError as problem:
        raise UsageError(f"cannot read --config {file}: {problem.strerror}") from problem
    except (ValueError, TypeError) as problem:
        raise UsageError(str(problem)) from problem


def without(words: Sequence[str], flags: tuple[str, ...]) -> list[str]:
    """The words without these flags and their values."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in flags:
            skip = True
        elif not word.startswith(tuple(f"{flag}=" for flag in flags)):
            kept.append(word)
    return kept


def _registry() -> ConstructorRegistry:
    """Tells tyro that a free dict is written as KEY=VALUE words."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def _(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:  # pyright: ignore
        if info.type != dict[str, Any]:
            return None
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar="KEY=VALUE",
            instance_from_str=key_values,
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda value: [f"{k}={v}" for k, v in value.items()],
        )

    return registry


def _unknown_flag(word: str, known: set[str], prog: str) -> str:
    if not word.startswith("--"):
        return f"unexpected word {word!r}"
    if moved := MOVED.get(word.partition("=")[0].removeprefix("--").replace("-", "_")):
        setting = word.partition("=")[0].removeprefix("--").replace("-", "_")
        return f"unknown flag {word!r}; it is a setting of {moved}: --algorithm-args {setting}=VALUE"
    near = difflib.get_close_matches(word.partition("=")[0], sorted(known), n=3)
    return f"unknown flag {word!r}; " + (f"did you mean: {', '.join(near)}?" if near else f"see {prog} --help")


def _flags(cls: Any, prefix: str = "") -> set[str]:
    """Every flag of a configuration dataclass; annotated parts (OmitArgPrefixes) put no prefix before theirs."""
    flags: set[str] = set()
    for name, hint in get_type_hints(cls, include_extras=True).items():
        inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if is_dataclass(inner):
            flags |= _flags(inner, "" if inner is not hint else f"{prefix}{name}.")
        else:
            flags.add("--" + (prefix + name).replace("_", "-"))
    return flags


_HELP = f"""Train an agent with memory.

Also: --preset {"|".join(PRESETS)} (the papers' settings, or one that is learnt in minutes), --config FILE (a saved
config.toml), --resume RUN (continue a run; only --total-steps, --time-limit and what does not change results may be
given with it), --restarts N (resume a run that dies, up to N times in a row without a new checkpoint)."""
