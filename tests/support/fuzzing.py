"""Random command lines, made from the parsers, and damaged run directories; and how a command took them.

Everything is drawn from a `random.Random`, so that hypothesis and the long script in benchmarks/ share it.
"""

import contextlib
import hashlib
import importlib
import io
import json
import shutil
import signal
import tomllib
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import tomli_w

from engram.launch.check_core.command import CheckConfig
from engram.launch.config.command_line import flags_of, parse, run_command
from engram.launch.config.run_config import RunConfig
from engram.launch.config.run_flags import OTHER_FLAGS, parse_run
from engram.launch.evaluate.command import EvaluationConfig
from engram.launch.play.command import PlayConfig
from engram.launch.population.command import PopulationViewConfig

SECONDS = 60
"""A command that takes longer hangs (the slowest case takes 2 s on a quiet machine)."""
PARSERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "rl-train": (RunConfig, OTHER_FLAGS),
    "rl-eval": (EvaluationConfig, ()),
    "rl-population": (PopulationViewConfig, ()),
    "rl-check-core": (CheckConfig, ()),
    "rl-play": (PlayConfig, ()),
}
VALUES = [
    *("0", "1", "2", "-1", "7", "0.5", "1e-3", "1e6", "1e400", "-0.0", "nan", "inf", "-inf", "9" * 23),
    *(
        "",
        " ",
        "=",
        "a=1",
        "a=b=c",
        "=1",
        "a=[1,2",
        "a=(1,(2,))",
        "a=None",
        "a={}",
        "a=__import__('os')",
        "--",
        "-",
        "-x",
    ),
    *("boxworld", "t-maze", "t-maze-twin", "CartPole-v1", "CartPole-v0", "os:getcwd", "no.such:Class", ":", "a:b:c"),
    *(
        "lstm",
        "rmc",
        "auto",
        "cpu",
        "cuda",
        "cuda:99",
        "vtrace",
        "a2c",
        "ppo",
        "true",
        "None",
        "easy",
        "paper",
        "latest",
    ),
    *(
        "learner.lr=loguniform(1e-4,1e-3)",
        "learner.lr=choice()",
        "learner.lr=uniform(2,1)",
        "learner.seed=uniform(1,2)",
    ),
    *(
        "/",
        ".",
        "/dev/null",
        "/no/such/place",
        "\udcff",
        "ü",
        "\x00",
        "\n",
        "[bold]x[/]",
        "s3://a:b@c/d",
        "zip://x::ftp://y",
    ),
]
"""Words that are right for some flag and wrong for most."""
JSON_VALUES: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        1.5,
        10**30,
        float("nan"),
        "",
        "x",
        "\x00",
        [],
        [None],
        [[]],
        {},
        {"a": 1},
        {"member": 0},
        "0",
    ),
]


class Outcome(NamedTuple):
    """How a command ended."""

    code: object
    """Exit code, or the exception that a user would see as a traceback."""
    output: str

    @property
    def fine(self) -> bool:
        """Whether it kept the promise: it did its work, or said what is wrong; no traceback, no hang."""
        return self.code in (0, 1, 2, 3) and "Traceback" not in self.output


class HangError(BaseException):
    """The command took too long."""


def attempt(command: str, words: list[str]) -> Outcome:
    """A command run in this process. rl-train, rl-check-core and rl-play are only parsed unless they read a run."""
    said = io.StringIO()
    code: object = "it returned"

    def stop(*_: object) -> None:
        raise HangError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            run_command(command, lambda given: _main(command, list(given)), words)
    except SystemExit as end:
        code = end.code
    except (Exception, HangError) as problem:
        code = problem
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Outcome(code, said.getvalue())


def _main(command: str, words: list[str]) -> int:
    cls, _ = PARSERS[command]
    if command == "rl-train" and words[:1] != ["--resume"]:
        parse_run(words)
    elif command in ("rl-check-core", "rl-play"):
        parse(cls, words, command, "")
    else:
        folder = {"rl-train": "train", "rl-eval": "evaluate", "rl-population": "population"}[command]
        return importlib.import_module(f"engram.launch.{folder}.command").main(words)
    return 0


# -- command lines ----------------------------------------------------------------------------------------------------


def command_line(random: Random) -> tuple[str, list[str]]:
    """A command and words of which few or none make sense together; none that would train or read a run."""
    command = random.choice(list(PARSERS))
    cls, others = PARSERS[command]
    flags = sorted({*flags_of(cls), *others, "--version"})
    words: list[str] = []
    for _ in range(random.randrange(5)):
        flag = _misspelt(random, random.choice(flags)) if random.random() < 0.2 else random.choice(flags)
        value = random.choice(VALUES)
        words += random.choice(
            [[flag, value], [f"{flag}={value}"], [flag], [value], [flag, value, random.choice(VALUES)]]
        )
    if words[:1] == ["--resume"]:
        words = words[1:]
    return command, words


def _misspelt(random: Random, flag: str) -> str:
    place = random.randrange(2, len(flag))
    return random.choice([flag[:place] + flag[place + 1 :], flag[:place] + "x" + flag[place:], flag[1:], flag.upper()])


# -- run directories --------------------------------------------------------------------------------------------------


def reading_line(random: Random, run: Path) -> tuple[str, list[str]]:
    """A command that reads a run."""
    return random.choice(
        [
            ("rl-eval", [str(run), "--episodes", "2"]),
            ("rl-eval", [str(run), "--episodes", "2", "--checkpoint", "best"]),
            ("rl-eval", [str(run), "--episodes", "2", "--all"]),
            ("rl-population", [str(run)]),
            ("rl-population", [str(run), "--replay"]),
            ("rl-train", ["--resume", str(run), "--total-steps", "1"]),
        ]
    )


def damage(random: Random, run: Path) -> str:
    """Spoil one file of a run; says which and how."""
    files = sorted(path for path in run.rglob("*") if path.is_file() and "tensorboard" not in path.parts)
    named = [path for path in files if path.name in ("config.toml", "population.jsonl", "state.json")]
    file = random.choice(named if named and random.random() < 0.8 else files)
    how = random.choice([_cut, _flip, _gone, _noise, _folder, _empty, _value, _value, _value, _value, _lines, _deep])
    how(random, file)
    if file.name in ("state.json", "tensors.pt") and file.is_file() and random.random() < 0.7:
        reseal(file.parent)
    return f"{file.relative_to(run)}: {how.__name__}"


def reseal(checkpoint: Path) -> None:
    """Make the sums of a checkpoint right, whatever its files hold."""
    names = [name for name in ("state.json", "tensors.pt") if (checkpoint / name).is_file()]
    lines = [f"{hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (checkpoint / "SHA256SUMS").write_text("".join(lines))


def copy_of(run: Path, place: Path) -> Path:
    """A fresh copy of a run at `place`."""
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(run, place))


def bytes_of(run: Path) -> dict[str, bytes]:
    """All files of a run but its lock."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """Files that are gone or hold something else; new ones next to them are no loss."""
    return [name for name, content in before.items() if after.get(name) != content]


def _cut(random: Random, file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: random.randrange(len(content) + 1)])


def _flip(random: Random, file: Path) -> None:
    content = bytearray(file.read_bytes() or b"x")
    content[random.randrange(len(content))] = random.randrange(256)
    file.write_bytes(content)


def _gone(_: Random, file: Path) -> None:
    file.unlink()


def _noise(random: Random, file: Path) -> None:
    file.write_bytes(random.randbytes(60))


def _folder(_: Random, file: Path) -> None:
    file.unlink()
    file.mkdir()


def _empty(_: Random, file: Path) -> None:
    file.write_bytes(b"")


def _deep(_: Random, file: Path) -> None:
    file.write_text("[" * 100_000)


def _lines(random: Random, file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True) or [b""]
    place = random.randrange(len(lines))
    lines[place : place + 1] = random.choice([[], [lines[place]] * 2, [b"null\n"], [b"[]\n"], [b"{}\n"], lines[:1]])
    file.write_bytes(b"".join(lines))


def _value(random: Random, file: Path) -> None:
    """One value of a JSON, TOML or JSON-lines file becomes another, or goes."""
    try:
        if file.suffix == ".toml":
            tree = tomllib.loads(file.read_text())
            _change(random, tree, [each for each in JSON_VALUES if each is not None and each != [None]])
            file.write_text(tomli_w.dumps(tree))
        elif file.suffix == ".jsonl":
            lines = file.read_text().splitlines()
            place = random.randrange(len(lines))
            tree = json.loads(lines[place])
            _change(random, tree, JSON_VALUES)
            lines[place] = json.dumps(tree)
            file.write_text("\n".join(lines) + "\n")
        else:
            tree = json.loads(file.read_text())
            _change(random, tree, JSON_VALUES)
            file.write_text(json.dumps(tree))
    except (ValueError, TypeError, OverflowError):
        _noise(random, file)


def _change(random: Random, tree: Any, values: list[Any]) -> None:
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not keys:
            return
        key = random.choice(keys)
        if isinstance(tree[key], dict | list) and tree[key] and random.random() < 0.8:
            tree = tree[key]
        elif random.random() < 0.2:
            del tree[key]
            return
        else:
            tree[key] = random.choice(values)
            return
