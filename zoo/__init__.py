"""Agents included in engram, by name: `rl-eval zoo:graph-fwm`, `rl-train --start-from zoo:graph-fwm`.

zoo/NAME/config.toml            the configuration of the run that trained it
zoo/NAME/weights.safetensors    its weights
zoo/NAME/agent.json             its evaluation with 95% intervals, and its provenance
"""

import json
import shlex
import tomllib
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save
from torch import Tensor

from ..base.errors import EngramError, advice, library_errors
from ..base.files import replace_file

PREFIX = "zoo:"
_HERE = Path(__file__).parent
CONFIG, WEIGHTS, FACTS = "config.toml", "weights.safetensors", "agent.json"


class Kept(NamedTuple):
    """An agent of the zoo."""

    folder: Path
    config: dict[str, Any]
    """The configuration of the run that trained it, as in its config.toml."""
    weights: dict[str, Tensor]
    facts: dict[str, Any]
    """`evaluation` (estimates with intervals, episodes, seed, the environment's parameters) and `provenance` (command,
    commit, steps, seed, member)."""


def names() -> list[str]:
    """Names of all agents."""
    return sorted(file.parent.name for file in _HERE.glob(f"*/{FACTS}"))


def facts(name: str) -> dict[str, Any]:
    """Evaluation and provenance of an agent, without its weights. Raises EngramError."""
    if name not in names():
        raise EngramError(f"there is no agent zoo:{name}; {advice(name, names())}")
    return json.loads((_HERE / name / FACTS).read_text())


def environment(record: dict[str, Any]) -> str:
    """Environment of an agent, with its arguments in training and in the evaluation."""
    command = shlex.split(record["provenance"]["command"])
    trained = (
        list(takewhile(lambda argument: not argument.startswith("--"), command[command.index("--env-args") + 1 :]))
        if ("--env-args" in command)
        else []
    )
    arguments = (record["env"], *trained, *record["evaluation"]["env_args"])
    return " ".join(arguments).replace("assignment=drawn", "assignment=random")  # the name in earlier versions


def load(name: str) -> Kept:
    """Load an agent by its name without `zoo:`. Raises EngramError."""
    facts(name)
    folder = _HERE / name
    with library_errors(str(folder), OSError, ValueError, SafetensorError):
        return read(folder, lambda file: (folder / file).read_bytes())


def read(folder: Path, content: Callable[[str], bytes]) -> Kept:
    """Read an agent from the contents of its files. Raises ValueError, SafetensorError and what `content` raises."""
    config = tomllib.loads(content(CONFIG).decode())
    return Kept(folder, config, load_tensors(content(WEIGHTS)), json.loads(content(FACTS)))


def add(name: str, config: bytes, weights: dict[str, Tensor], record: dict[str, Any]) -> Path:
    """Add an agent to the zoo, replacing one of the same name; return its folder. Raises OSError."""
    folder = _HERE / name
    folder.mkdir(exist_ok=True)
    for file, content in files(config, weights, record).items():
        replace_file(folder / file, content)
    return folder


def files(config: bytes, weights: dict[str, Tensor], record: dict[str, Any]) -> dict[str, bytes]:
    """Return the contents of an agent's three files by name, as `read` expects them."""
    tensors = save({name: tensor.contiguous() for name, tensor in weights.items()})
    return {CONFIG: config, WEIGHTS: tensors, FACTS: (json.dumps(record, indent=1) + "\n").encode()}
