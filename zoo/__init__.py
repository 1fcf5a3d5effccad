"""Agents that come with engram, by name: `rl-eval zoo:graph-fwm`, `rl-train --start-from zoo:graph-fwm`.

zoo/NAME/config.toml            the configuration of the run that trained it
zoo/NAME/weights.safetensors    its weights
zoo/NAME/agent.json             its evaluation with 95% intervals, and where it comes from
"""

import json
import shlex
import tomllib
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ..base.files import replace_file
from ..base.messages import advice

PREFIX = "zoo:"
_HERE = Path(__file__).parent
_CONFIG, _WEIGHTS, _FACTS = "config.toml", "weights.safetensors", "agent.json"


class ZooError(ValueError):
    """There is no such agent, or its files are not what they should be; the message is one line for the user."""


class Kept(NamedTuple):
    """An agent of the zoo."""

    folder: Path
    config: dict[str, Any]
    """The configuration of the run that trained it, as its config.toml has it."""
    weights: dict[str, Tensor]
    facts: dict[str, Any]
    """`evaluation` (estimates with intervals, episodes, seed, the world's parameters) and `provenance` (command,
    commit, steps, seed, member)."""


def names() -> list[str]:
    """The agents that there are."""
    return sorted(file.parent.name for file in _HERE.glob(f"*/{_FACTS}"))


def facts(name: str) -> dict[str, Any]:
    """Evaluation and provenance of an agent, without its weights. Raises ZooError."""
    if name not in names():
        raise ZooError(f"there is no agent zoo:{name}; {advice(name, names())}")
    return json.loads((_HERE / name / _FACTS).read_text())


def environment(found: dict[str, Any]) -> str:
    """Environment of an agent, with its constructor arguments in training and those of the evaluation."""
    words = shlex.split(found["provenance"]["command"])
    trained = (
        list(takewhile(lambda word: not word.startswith("--"), words[words.index("--env-args") + 1 :]))
        if ("--env-args" in words)
        else []
    )
    return " ".join((found["env"], *trained, *found["evaluation"]["env_args"]))


def load(name: str) -> Kept:
    """An agent by its name, without `zoo:`. Raises ZooError."""
    found, folder = facts(name), _HERE / name
    try:
        weights = load_file(folder / _WEIGHTS)
        return Kept(folder, tomllib.loads((folder / _CONFIG).read_text()), weights, found)
    except (OSError, ValueError, SafetensorError) as problem:
        raise ZooError(f"{folder}: {problem}") from problem


def add(name: str, config: bytes, weights: dict[str, Tensor], found: dict[str, Any]) -> Path:
    """Put an agent into the zoo, in the place of one of the same name; returns its folder. Raises OSError."""
    folder = _HERE / name
    folder.mkdir(exist_ok=True)
    replace_file(folder / _CONFIG, config)
    replace_file(folder / _WEIGHTS, save({key: value.contiguous() for key, value in weights.items()}))
    replace_file(folder / _FACTS, (json.dumps(found, indent=1) + "\n").encode())
    return folder
